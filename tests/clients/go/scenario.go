package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	count  = 30
	round  = 8
	queues = 4
	large  = 100_000
)

var tags = []string{"red", "green", "blue"}

// run is one scenario: sends of all kinds, a group of two members, tags, retries, a restart.
type run struct {
	address, topic string
	producer       rocketmq.Producer
	rounds         int
}

func (r *run) message(name, tag string) *primitive.Message {
	made := primitive.NewMessage(r.topic, []byte(name))
	made.WithTag(tag)
	made.WithKeys([]string{"key-" + name})
	made.WithProperty("name", name)
	made.WithProperty("mine", "grün "+name)
	return made
}

func (r *run) messages(kind string) []*primitive.Message {
	made := make([]*primitive.Message, count)
	for i := range made {
		made[i] = r.message(fmt.Sprintf("%s-%d", kind, i), tags[i%len(tags)])
	}
	return made
}

func (r *run) send(messages ...*primitive.Message) *primitive.SendResult {
	result, err := r.producer.SendSync(context.Background(), messages...)
	check(err)
	return result
}

func status(result *primitive.SendResult) string {
	if result.Status == primitive.SendOK {
		return "SEND_OK"
	}
	return fmt.Sprint(result.Status)
}

func (r *run) sendOneByOne(kind string) {
	statuses, used := map[string]bool{}, map[string]bool{}
	for _, message := range r.messages(kind) {
		result := r.send(message)
		statuses[status(result)] = true
		used[fmt.Sprint(result.MessageQueue.QueueId)] = true
	}
	fact("send "+kind, fmt.Sprint(sorted(statuses), " queues ", sorted(used)))
}

func (r *run) sendAllWays() {
	r.sendOneByOne("sync")
	statuses, lock, open := map[string]bool{}, sync.Mutex{}, sync.WaitGroup{}
	for _, message := range r.messages("async") {
		open.Add(1)
		check(r.producer.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				lock.Lock()
				defer lock.Unlock()
				if err != nil {
					statuses[err.Error()] = true
				} else {
					statuses[status(result)] = true
				}
				open.Done()
			}, message))
	}
	open.Wait()
	fact("send async", sorted(statuses))
	for _, message := range r.messages("oneway") {
		check(r.producer.SendOneWay(context.Background(), message))
	}
	batch := r.send(r.messages("batch")...)
	fact("send batch", fmt.Sprint(status(batch), " ids ", len(strings.Split(batch.OffsetMsgID, ","))))
	big := r.message("large", "red")
	big.Body = make([]byte, large)
	fact("send large", status(r.send(big)))
	late := r.message("late", "red")
	late.WithDelayTimeLevel(1)
	fact("send late", status(r.send(late)))
}

// split sends a round, and returns which members got it, each with the queues that it came from.
func (r *run) split(of *group) map[string]map[int]bool {
	kind := fmt.Sprintf("round%d-", r.rounds)
	r.rounds++
	for i := 0; i < round; i++ {
		r.send(r.message(fmt.Sprint(kind, i), "round"))
	}
	until(func() bool { return of.count(kind) == round })
	found := map[string]map[int]bool{}
	of.each(func(name string, tries []got) {
		for _, one := range tries {
			if strings.HasPrefix(name, kind) {
				if found[one.member] == nil {
					found[one.member] = map[int]bool{}
				}
				found[one.member][one.queue] = true
			}
		}
	})
	return found
}

// awaitSplit sends rounds until the members share the queues as they should.
func (r *run) awaitSplit(name string, of *group, members int) {
	var last map[string]map[int]bool
	until(func() bool {
		last = r.split(of)
		isEven := len(last) == members
		for _, used := range last {
			isEven = isEven && len(used) == queues/members
		}
		return isEven
	})
	shares := []string{}
	for _, member := range sorted(last) {
		used := []int{}
		for queue := range last[member] {
			used = append(used, queue)
		}
		sort.Ints(used)
		shares = append(shares, fmt.Sprint(member, used))
	}
	fact(name, strings.Join(shares, " "))
}

func (r *run) share() {
	of := newGroup(r.address, "share-"+r.topic, r.topic, "*", false)
	one := of.join("one")
	until(func() bool { return of.count("") >= 4*count+2 })
	for _, kind := range []string{"sync", "async", "oneway", "batch", "large", "late"} {
		fact("got "+kind, of.count(kind))
	}
	wrong := []string{}
	of.each(func(name string, tries []got) {
		for _, one := range tries {
			isRight := one.keys == "key-"+name && one.mine == "grün "+name
			if !isRight || one.topic != r.topic || one.times != 0 {
				wrong = append(wrong, fmt.Sprint(name, one))
			}
			if name == "large" {
				fact("got large bytes", one.length)
			}
		}
	})
	fact("got wrong", wrong)
	two := of.join("two")
	r.awaitSplit("two members", of, 2)
	time.Sleep(settled)
	check(one.Shutdown())
	r.awaitSplit("one has gone", of, 1)
	fact("got rounds", of.count("round") == r.rounds*round)
	check(two.Shutdown())
}

func (r *run) filterAndGoOn() {
	of := newGroup(r.address, "tags-"+r.topic, r.topic, "red || blue", false)
	first := of.join("tags")
	until(func() bool { return of.count("") >= 4*count*2/len(tags)+2 })
	time.Sleep(settled)
	seen := map[string]bool{}
	of.each(func(_ string, tries []got) {
		for _, one := range tries {
			seen[one.tags] = true
		}
	})
	fact("by tags", fmt.Sprint(sorted(seen), " ", of.count("")))
	check(first.Shutdown())
	r.sendOneByOne("away")
	again := newGroup(r.address, "tags-"+r.topic, r.topic, "red || blue", false)
	second := again.join("tags")
	until(func() bool { return again.count("away") == count*2/len(tags) })
	time.Sleep(settled)
	fact("goes on with", again.count("away"))
	fact("repeats", again.count("")-again.count("away"))
	check(second.Shutdown())
}

func (r *run) retry() {
	for i := 0; i < count; i++ {
		r.send(r.message(fmt.Sprint("retry-", i), "again"))
	}
	of := newGroup(r.address, "retry-"+r.topic, r.topic, "again", true)
	here := of.join("retry")
	isDone := func() bool {
		twice := 0
		of.each(func(_ string, tries []got) {
			if len(tries) >= 2 {
				twice++
			}
		})
		return twice == count
	}
	until(isDone)
	time.Sleep(settled)
	histories := map[string]bool{}
	of.each(func(_ string, tries []got) { histories[of.history(tries)] = true })
	fact("retried", fmt.Sprint(of.count(""), " as ", sorted(histories)))
	check(here.Shutdown())
}

func scenario(address, topic string) {
	sender, err := rocketmq.NewProducer(
		producerAt(address, "producers-"+topic, producer.WithInstanceName("sender"), producer.WithRetry(2))...)
	check(err)
	check(sender.Start())
	r := &run{address: address, topic: topic, producer: sender}
	r.sendAllWays()
	r.share()
	r.filterAndGoOn()
	r.retry()
	check(sender.Shutdown())
}
