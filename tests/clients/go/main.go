// RocketMQ's Go client as its users write it. Arguments: scenario NAME-SERVER TOPIC, or
// member NAME-SERVER TOPIC GROUP, which prints what it gets until it is killed.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	patience = 60 * time.Second
	look     = 50 * time.Millisecond
	settled  = 1500 * time.Millisecond
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func fact(name string, value any) {
	fmt.Printf("%s=%v\n", name, value)
}

// until waits until the condition holds; false if it does not within patience.
func until(holds func() bool) bool {
	for end := time.Now().Add(patience); !holds(); time.Sleep(look) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func member(address, topic, group string) {
	here, err := rocketmq.NewPushConsumer(consumerAt(address, group)...)
	check(err)
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			fmt.Println(string(message.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
	check(here.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, take))
	check(here.Start())
	select {}
}

func main() {
	rlog.SetLogLevel("error")
	switch os.Args[1] {
	case "scenario":
		scenario(os.Args[2], os.Args[3])
	case "member":
		member(os.Args[2], os.Args[3], os.Args[4])
	}
}
