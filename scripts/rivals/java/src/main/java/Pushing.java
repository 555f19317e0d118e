import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** A push consumer of a new group, from the first message of a topic until it has had as many as are stored. */
final class Pushing {
    private static final int LIMIT_S = 120;
    /** Messages of one queue in the client's memory: so many that its own flow control never waits. */
    private static final int HELD_MAX = 65_535;

    private final Broker broker;
    private final String topic;
    private final String group;
    private final int pull;
    private final long expected;
    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong firstAt = new AtomicLong();
    private final AtomicLong lastAt = new AtomicLong();
    private final CountDownLatch all = new CountDownLatch(1);

    Pushing(Broker broker, JSONObject command) {
        this.broker = broker;
        topic = command.getString("topic");
        group = command.getString("group");
        pull = command.getIntValue("pull", 32);
        expected = command.getLongValue("messages");
    }

    void run(JSONObject answer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(broker.nameServer);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(pull);
        consumer.setConsumeMessageBatchMaxSize(Math.min(pull, 1024));
        consumer.setPullThresholdForQueue(HELD_MAX / 2);
        consumer.setConsumeConcurrentlyMaxSpan(HELD_MAX);
        consumer.subscribe(topic, "*");
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
        boolean done = all.await(LIMIT_S, TimeUnit.SECONDS);
        consumer.shutdown();
        answer.put("messages", messages.get());
        answer.put("failed", done ? 0 : expected - messages.get());
        answer.put("seconds", (lastAt.get() - firstAt.get()) / 1e9);
    }
}
