import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Delay levels, retries, dead letters and orderly consumption, as RocketMQ's users write them. Prints name=value. */
public final class RetryClient {
    private static final long PATIENCE_S = 60;
    private static final int ORDERED = 100;
    private static String address;
    private static String topic;

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static boolean until(Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                return false;
            }
            Thread.sleep(50);
        }
        return true;
    }

    private static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    private static DefaultMQPushConsumer consumer(String group, String from) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(from, "*");
        return consumer;
    }

    private static void orderly(DefaultMQProducer producer) throws Exception {
        String ordered = topic + "-ordered";
        for (int number = 0; number < ORDERED; number++) {
            Message message = new Message(ordered, ("" + number).getBytes());
            producer.send(message, (queues, one, key) -> queues.get(0), null);
        }
        List<String> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("orderly-" + topic, ordered);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        boolean[] hasFailed = {false};
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody());
                if (body.equals("50") && !hasFailed[0]) {
                    hasFailed[0] = true;
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                seen.add(body);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        print("ordered all", until(() -> seen.size() == ORDERED));
        boolean inOrder = true;
        for (int number = 0; number < seen.size(); number++) {
            inOrder &= seen.get(number).equals("" + number);
        }
        print("in order", inOrder);
        consumer.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + topic);
        producer.setNamesrvAddr(address);
        producer.start();
        Map<String, List<String>> tries = new ConcurrentHashMap<>();
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("group-" + topic, topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String key = message.getKeys();
            List<String> known = tries.computeIfAbsent(key, name -> new CopyOnWriteArrayList<>());
            known.add(message.getTopic() + ":" + message.getReconsumeTimes());
            arrived.putIfAbsent(key, System.currentTimeMillis());
            boolean fails = key.equals("never") || key.equals("once") && known.size() == 1;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message late = new Message(topic, "tag", "late", "later".getBytes());
        late.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        print("sent", producer.send(late).getSendStatus());
        print("late arrives", until(() -> arrived.containsKey("late")));
        long took = arrived.get("late") - sent;
        print("late by", took >= 1900 && took < 10000);
        producer.send(new Message(topic, "tag", "once", "fails once".getBytes()));
        producer.send(new Message(topic, "tag", "never", "fails always".getBytes()));
        print("again", until(() -> tries.getOrDefault("once", List.of()).size() == 2));
        print("thrice", until(() -> tries.getOrDefault("never", List.of()).size() == 3));
        Thread.sleep(3000);
        print("once", tries.get("once"));
        print("never", tries.get("never"));
        consumer.shutdown();
        orderly(producer);
        producer.shutdown();
        System.exit(0);
    }
}
