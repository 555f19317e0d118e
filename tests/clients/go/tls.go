//go:build tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// The client of tls.mod encrypts its connections. It verifies nobody, and has no certificate to show.
var (
	consumerTLS = []consumer.Option{consumer.WithTls(true)}
	producerTLS = []producer.Option{producer.WithTls(true)}
)
