import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The members of one consumer group, and what each of them was given. */
final class Group {
    /** One message as a member got it. */
    record Got(String member, int queue, String topic, int times, String tags, String keys, String mine, int length) {
    }

    private final String address;
    private final String name;
    private final String topic;
    private final String expression;
    private final boolean failsFirst;
    /** By the message's name, its property "name": each time that it came. */
    final Map<String, List<Got>> seen = new ConcurrentHashMap<>();

    Group(String address, String name, String topic, String expression, boolean failsFirst) {
        this.address = address;
        this.name = name;
        this.topic = topic;
        this.expression = expression;
        this.failsFirst = failsFirst;
    }

    DefaultMQPushConsumer join(String member) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name, Login.hook(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(member);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, expression);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean isFirst = false;
            for (MessageExt message : messages) {
                List<Got> tries = seen.computeIfAbsent(message.getUserProperty("name"), any -> new CopyOnWriteArrayList<>());
                isFirst |= tries.isEmpty();
                tries.add(new Got(
                    member, message.getQueueId(), message.getTopic(), message.getReconsumeTimes(), message.getTags(),
                    message.getKeys(), message.getUserProperty("mine"), message.getBody().length));
            }
            return failsFirst && isFirst ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** How many messages came at least once whose names begin so. */
    long count(String prefix) {
        return seen.keySet().stream().filter(one -> one.startsWith(prefix)).count();
    }
}
