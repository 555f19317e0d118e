package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// got is one message as a member of a group got it.
type got struct {
	member, topic, tags, keys, mine string
	queue, length                   int
	times                           int32
}

// group is the members of one consumer group, and what each of them was given.
type group struct {
	address, name, topic, expression string
	failsFirst                       bool
	lock                             sync.Mutex
	seen                             map[string][]got // by the message's name: each time that it came
}

func newGroup(address, name, topic, expression string, failsFirst bool) *group {
	return &group{
		address: address, name: name, topic: topic, expression: expression,
		failsFirst: failsFirst, seen: map[string][]got{},
	}
}

func (g *group) join(member string) rocketmq.PushConsumer {
	here, err := rocketmq.NewPushConsumer(consumerAt(g.address, g.name, consumer.WithInstance(member))...)
	check(err)
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if g.take(member, messages) && g.failsFirst {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	check(here.Subscribe(g.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: g.expression}, take))
	check(here.Start())
	return here
}

// take notes messages; true if one of them came for the first time.
func (g *group) take(member string, messages []*primitive.MessageExt) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	isFirst := false
	for _, m := range messages {
		name := m.GetProperty("name")
		isFirst = isFirst || len(g.seen[name]) == 0
		g.seen[name] = append(g.seen[name], got{
			member, m.Topic, m.GetTags(), m.GetKeys(), m.GetProperty("mine"),
			m.Queue.QueueId, len(m.Body), m.ReconsumeTimes,
		})
	}
	return isFirst
}

// count says how many messages came at least once whose names begin so.
func (g *group) count(prefix string) int {
	g.lock.Lock()
	defer g.lock.Unlock()
	found := 0
	for name := range g.seen {
		if strings.HasPrefix(name, prefix) {
			found++
		}
	}
	return found
}

// each calls back for all that came, in the order of the names.
func (g *group) each(visit func(name string, tries []got)) {
	g.lock.Lock()
	defer g.lock.Unlock()
	for _, name := range sorted(g.seen) {
		visit(name, g.seen[name])
	}
}

func sorted[V any](of map[string]V) []string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (g *group) history(tries []got) string {
	found := make([]string, len(tries))
	for i, one := range tries {
		topic := one.topic
		if topic == g.topic {
			topic = "own"
		}
		found[i] = fmt.Sprintf("%s:%d", topic, one.times)
	}
	return strings.Join(found, " ")
}
