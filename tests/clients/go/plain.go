//go:build !tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// The client 2.1.2 has no TLS.
var (
	consumerTLS []consumer.Option
	producerTLS []producer.Option
)
