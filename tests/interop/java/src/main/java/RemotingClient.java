import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer and the push consumers of a group, as RocketMQ's users write them. Prints what they saw: name=value.
 * Arguments: name server, topic, messages in each step, the queues of the topic at all brokers (4).
 */
public final class RemotingClient {
    private static final long PATIENCE_S = 60;
    private static String address;
    private static String topic;

    /** One member of the group, and what it was given. */
    private static final class Member {
        final DefaultMQPushConsumer consumer;
        final AtomicInteger count = new AtomicInteger();

        Member(String name, String expression, Set<String> seen) throws MQClientException {
            this("group-" + topic, name, MessageSelector.byTag(expression), seen);
        }

        Member(String group, String name, MessageSelector selector, Set<String> seen) throws MQClientException {
            consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(address);
            consumer.setInstanceName(name);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setPersistConsumerOffsetInterval(500);
            consumer.subscribe(topic, selector);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    seen.add(message.getKeys() + "/" + message.getTags() + "/" + new String(message.getBody()));
                    count.incrementAndGet();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        int queues() {
            int found = 0;
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                found += queue.getTopic().equals(topic) ? 1 : 0;
            }
            return found;
        }
    }

    private static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }

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

    private static Message message(int number) {
        Message made = new Message(topic, number % 2 == 0 ? "even" : "odd", "k" + number, ("body " + number).getBytes());
        made.putUserProperty("a", String.valueOf(number % 10));
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        int queues = arguments.length > 3 ? Integer.parseInt(arguments[3]) : 4;
        Set<String> brokers = ConcurrentHashMap.newKeySet();
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + topic);
        producer.setNamesrvAddr(address);
        producer.start();
        for (int number = 0; number < count; number++) {
            SendResult result = producer.send(message(number));
            brokers.add(result.getMessageQueue().getBrokerName());
            if (number == 0) {
                print("first", result.getSendStatus() + " " + result.getOffsetMsgId() + " " + result.getMsgId());
            }
        }
        CountDownLatch answered = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        for (int number = count; number < 2 * count; number++) {
            producer.send(message(number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    answered.countDown();
                }
            });
        }
        print("answered", answered.await(PATIENCE_S, TimeUnit.SECONDS) + " failed " + failed);
        List<Message> batch = new ArrayList<>();
        for (int number = 2 * count; number < 3 * count; number++) {
            batch.add(message(number));
        }
        print("batch", producer.send(batch).getSendStatus());
        print("queues", producer.fetchPublishMessageQueues(topic).size());
        print("brokers", brokers.size());

        Set<String> seen = ConcurrentHashMap.newKeySet();
        Member first = new Member("one", "*", seen);
        Member second = new Member("two", "*", seen);
        print("all", until(() -> seen.size() == 3 * count));
        print("shared", until(() -> first.queues() == queues / 2 && second.queues() == queues / 2));
        first.consumer.shutdown();
        print("taken over", until(() -> second.queues() == queues));
        for (int number = 3 * count; number < 4 * count; number++) {
            producer.send(message(number));
        }
        print("all after it", until(() -> seen.size() == 4 * count));
        second.consumer.shutdown();

        Set<String> again = ConcurrentHashMap.newKeySet();
        for (int number = 4 * count; number < 5 * count; number++) {
            producer.sendOneway(message(number));
        }
        Member third = new Member("three", "even || none", again);
        print("goes on", until(() -> again.size() == (count + 1) / 2));
        Thread.sleep(1000);
        print("repeated", again.size() - (count + 1) / 2);
        third.consumer.shutdown();

        Set<String> bySql = ConcurrentHashMap.newKeySet();
        Member fourth = new Member("sql-" + topic, "four", MessageSelector.bySql("a > 5 AND TAGS = 'odd'"), bySql);
        print("by SQL", until(() -> bySql.size() == count) && bySql.stream().allMatch(one -> one.contains("/odd/")));
        Thread.sleep(1000);
        print("by SQL in the end", bySql.size());
        fourth.consumer.shutdown();
        try {
            new Member("bad-" + topic, "five", MessageSelector.bySql("a >"), bySql);
            print("bad SQL", "taken");
        } catch (MQClientException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            print("bad SQL", cause.getMessage() != null && cause.getMessage().contains("character 4"));
        }
        producer.shutdown();
        System.exit(0);
    }
}
