import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** Reads what is stored: by raw pulls, by a push consumer, by key. */
final class Reading {
    private static final int PUSH_LIMIT_S = 120;
    /** Messages of one queue in the client's memory: so many that its own flow control never waits. */
    private static final int HELD_MAX = 65_535;
    /** The client's code for: all brokers answered, none had it. */
    private static final int NO_MESSAGE = 208;

    private static DefaultMQPullConsumer puller;

    private Reading() {
    }

    /** A topic from its start to its end by raw pulls, as many queues at once as there are threads. */
    static void drain(Broker broker, JSONObject command, JSONObject answer) throws Exception {
        if (puller == null) {
            puller = broker.known(new DefaultMQPullConsumer("drain", Broker.hook()), "drain");
            puller.start();
        }
        int atMost = command.getIntValue("pull", 1024);
        Queue<MessageQueue> queues =
            new ConcurrentLinkedQueue<>(puller.fetchSubscribeMessageQueues(command.getString("topic")));
        AtomicLong messages = new AtomicLong();
        AtomicReference<Throwable> error = new AtomicReference<>();
        long began = System.nanoTime();
        Rival.parallel(command.getIntValue("threads", 8), number -> {
            try {
                for (MessageQueue queue = queues.poll(); queue != null; queue = queues.poll()) {
                    drain(queue, atMost, messages);
                }
            } catch (Exception e) {
                error.compareAndSet(null, e);
            }
        });
        if (error.get() != null) {
            throw new IllegalStateException(error.get());
        }
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        answer.put("messages", messages.get());
    }

    private static void drain(MessageQueue queue, int atMost, AtomicLong messages) throws Exception {
        long offset = 0;
        PullResult result = puller.pull(queue, "*", offset, atMost);
        while (result.getPullStatus() == PullStatus.FOUND) {
            messages.addAndGet(result.getMsgFoundList().size());
            offset = result.getNextBeginOffset();
            if (offset >= result.getMaxOffset()) {
                return;
            }
            result = puller.pull(queue, "*", offset, atMost);
        }
    }

    /** A push consumer of a new group, from the first message until it has had as many as are stored. */
    static void push(Broker broker, JSONObject command, JSONObject answer) throws Exception {
        String group = command.getString("group");
        int pull = command.getIntValue("pull", 32);
        long expected = command.getLongValue("messages");
        AtomicLong messages = new AtomicLong();
        AtomicLong firstAt = new AtomicLong();
        AtomicLong lastAt = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = broker.known(new DefaultMQPushConsumer(group, Broker.hook()), group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(pull);
        consumer.setConsumeMessageBatchMaxSize(Math.min(pull, 1024));
        consumer.setPullThresholdForQueue(HELD_MAX / 2);
        consumer.setConsumeConcurrentlyMaxSpan(HELD_MAX);
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (some, context) -> {
            long now = System.nanoTime();
            firstAt.compareAndSet(0, now);
            lastAt.set(now);
            if (messages.addAndGet(some.size()) >= expected) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean done = all.await(PUSH_LIMIT_S, TimeUnit.SECONDS);
        consumer.shutdown();
        answer.put("messages", messages.get());
        answer.put("failed", done ? 0 : expected - messages.get());
        answer.put("seconds", (lastAt.get() - firstAt.get()) / 1e9);
    }

    /** Looks random ones of the keys key-0 ... key-(N-1) up, one after the other. */
    static void find(DefaultMQProducer producer, JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        int keys = command.getIntValue("keys");
        int lookups = command.getIntValue("lookups");
        Random draw = new Random(command.getLongValue("seed"));
        Samples samples = new Samples();
        long missing = 0;
        long began = System.nanoTime();
        for (int i = 0; i < lookups; i++) {
            String key = "key-" + draw.nextInt(keys);
            long start = System.nanoTime();
            try {
                producer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
            } catch (MQClientException e) {
                if (e.getResponseCode() != NO_MESSAGE) {
                    throw e;
                }
                missing++;
            }
            samples.add(System.nanoTime() - start);
        }
        answer.put("messages", lookups);
        answer.put("failed", missing);
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        samples.report(answer);
    }
}
