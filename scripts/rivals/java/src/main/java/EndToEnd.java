import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/**
 * Messages at a fixed rate to a push consumer in the same process, which holds a long poll at each queue. A message's
 * time runs from the moment when it was due.
 */
final class EndToEnd {
    private static final Map<String, EndToEnd> LISTENING = new HashMap<>();
    private static final long STRAGGLERS_NS = 5_000_000_000L;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int threads;
    private final long gapNs;
    private final long perThread;
    private final int body;
    private final Samples delays = new Samples();
    private final int run;
    private DefaultMQPushConsumer consumer;

    EndToEnd(Broker broker, JSONObject command) throws Exception {
        producer = broker.producer(command);
        topic = command.getString("topic");
        threads = command.getIntValue("threads", 2);
        gapNs = 1_000_000_000L * threads / command.getIntValue("rate", 1000);
        perThread = command.getLongValue("seconds") * 1_000_000_000L / gapNs;
        body = command.getIntValue("body", 128);
        EndToEnd known = LISTENING.get(topic);
        run = known == null ? 1 : known.run + 1;
        listen(broker, known == null ? null : known.consumer);
    }

    private void listen(Broker broker, DefaultMQPushConsumer known) throws Exception {
        LISTENING.put(topic, this);
        consumer = known;
        if (known != null) {
            return;
        }
        consumer = broker.known(new DefaultMQPushConsumer("follow-" + topic, Broker.hook()), "follow-" + topic);
        consumer.subscribe(topic, "*");
        consumer.setPullBatchSize(32);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            EndToEnd current = LISTENING.get(topic);
            for (MessageExt message : messages) {
                current.arrived(ByteBuffer.wrap(message.getBody()), now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // The first rebalance gives it its queues.
        Thread.sleep(3_000);
    }

    void run(JSONObject answer) throws Exception {
        long began = System.nanoTime();
        Rival.parallel(threads, number -> send(began + number * gapNs / threads));
        long expected = perThread * threads;
        long limit = System.nanoTime() + STRAGGLERS_NS;
        while (arrivedSoFar() < expected && System.nanoTime() < limit) {
            Thread.sleep(1);
        }
        synchronized (delays) {
            answer.put("messages", delays.count());
            answer.put("failed", expected - delays.count());
            answer.put("seconds", (System.nanoTime() - began) / 1e9);
            delays.report(answer);
        }
    }

    private int arrivedSoFar() {
        synchronized (delays) {
            return delays.count();
        }
    }

    private void send(long first) {
        for (long i = 0; i < perThread; i++) {
            long due = first + i * gapNs;
            long now = System.nanoTime();
            while (now < due) {
                LockSupport.parkNanos(due - now);
                now = System.nanoTime();
            }
            ByteBuffer content = ByteBuffer.allocate(body);
            content.putInt(run).putLong(due);
            try {
                producer.send(new Message(topic, content.array()));
            } catch (Exception e) {
                // Counted as failed: it does not arrive.
                continue;
            }
        }
    }

    private void arrived(ByteBuffer content, long now) {
        if (content.getInt() != run) {
            return;
        }
        synchronized (delays) {
            delays.add(now - content.getLong());
        }
    }
}
