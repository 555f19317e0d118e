package main

import (
	"os"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// credentials are of the user whose requests they are: the file that CREDENTIALS_FILE names has a user and a
// secret, a line each. Without such a file they are empty, and the client signs nothing.
func credentials() primitive.Credentials {
	file := os.Getenv("CREDENTIALS_FILE")
	if file == "" {
		return primitive.Credentials{}
	}
	text, err := os.ReadFile(file)
	check(err)
	lines := strings.Split(string(text), "\n")
	return primitive.Credentials{AccessKey: lines[0], SecretKey: lines[1]}
}

func consumerAt(address, group string, more ...consumer.Option) []consumer.Option {
	options := append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{address})),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials()),
	}, more...)
	return append(options, consumerTLS...)
}

func producerAt(address, group string, more ...producer.Option) []producer.Option {
	options := append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{address})),
		producer.WithGroupName(group),
		producer.WithCredentials(credentials()),
	}, more...)
	return append(options, producerTLS...)
}
