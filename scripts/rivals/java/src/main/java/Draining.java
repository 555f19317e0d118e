import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** Reads a topic from its start to its end by raw pulls, as many queues at once as there are threads. */
final class Draining {
    private static DefaultMQPullConsumer consumer;

    private final Broker broker;
    private final String topic;
    private final int threads;
    private final int atMost;
    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong bodyBytes = new AtomicLong();
    private final AtomicReference<Throwable> error = new AtomicReference<>();

    Draining(Broker broker, JSONObject command) {
        this.broker = broker;
        topic = command.getString("topic");
        threads = command.getIntValue("threads", 8);
        atMost = command.getIntValue("pull", 1024);
    }

    void run(JSONObject answer) throws Exception {
        DefaultMQPullConsumer reader = consumer();
        ConcurrentLinkedQueue<MessageQueue> queues =
            new ConcurrentLinkedQueue<>(reader.fetchSubscribeMessageQueues(topic));
        long began = System.nanoTime();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> drainQueues(reader, queues), "drain-" + i);
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (error.get() != null) {
            throw new IllegalStateException(error.get());
        }
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        answer.put("messages", messages.get());
        answer.put("body_bytes", bodyBytes.get());
    }

    private void drainQueues(DefaultMQPullConsumer reader, ConcurrentLinkedQueue<MessageQueue> queues) {
        try {
            for (MessageQueue queue = queues.poll(); queue != null; queue = queues.poll()) {
                drain(reader, queue);
            }
        } catch (Exception e) {
            error.compareAndSet(null, e);
        }
    }

    private void drain(DefaultMQPullConsumer reader, MessageQueue queue) throws Exception {
        long offset = 0;
        while (true) {
            PullResult result = reader.pull(queue, "*", offset, atMost);
            if (result.getPullStatus() != PullStatus.FOUND) {
                return;
            }
            long bytes = 0;
            for (MessageExt message : result.getMsgFoundList()) {
                bytes += message.getBody().length;
            }
            bodyBytes.addAndGet(bytes);
            messages.addAndGet(result.getMsgFoundList().size());
            offset = result.getNextBeginOffset();
            if (offset >= result.getMaxOffset()) {
                return;
            }
        }
    }

    private DefaultMQPullConsumer consumer() throws Exception {
        if (consumer == null) {
            consumer = new DefaultMQPullConsumer("drain");
            consumer.setNamesrvAddr(broker.nameServer);
            consumer.setInstanceName("drain");
            consumer.start();
        }
        return consumer;
    }
}
