import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * What RocketMQ's own client and tools say over the wire, once each, for tests/interop/record_remoting.py: `all` or `sends`,
 * after the name server, the broker's address and its cluster.
 */
public final class RemotingTraffic {
    private static final String TOPIC = "frames";
    private static final String ORDERED = "frames-ordered";

    private RemotingTraffic() {
    }

    public static void main(String[] args) {
        try {
            run(args[0], args[1], args[2], args[3].equals("all"));
            System.exit(0);
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String nameServer, String broker, String cluster, boolean all) throws Exception {
        admin("updateTopic", "-n", nameServer, "-b", broker, "-t", TOPIC, "-r", "4", "-w", "4");
        admin("updateTopic", "-n", nameServer, "-b", broker, "-t", ORDERED, "-r", "2", "-w", "2", "-o", "true");
        Thread.sleep(1_000);
        DefaultMQProducer producer = new DefaultMQProducer("frames-producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        sends(producer);
        if (all) {
            consumption(nameServer, broker, cluster, producer);
        } else {
            DefaultMQPushConsumer consumer = concurrent(nameServer, "frames-group", "a");
            Thread.sleep(3_000);
            consumer.shutdown();
        }
        producer.shutdown();
    }

    private static void sends(DefaultMQProducer producer) throws Exception {
        Message message = message("TagA", "hello");
        message.setKeys("order-1 order-2");
        message.putUserProperty("größe", "12 €");
        producer.send(message);
        producer.sendOneway(message("TagB", "one way"));
        producer.send(message("TagA", "large ".repeat(2_000)));
        producer.send(List.of(message("TagA", "first"), message("TagB", "second"), message("TagC", "third")));
        Message delayed = message("TagA", "later");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        for (int i = 0; i < 8; i++) {
            producer.send(new Message(ORDERED, "TagA", ("step " + i).getBytes(StandardCharsets.UTF_8)), (queues, m, arg) -> queues.get(0), i);
        }
        try {
            producer.send(new Message("SCHEDULE_TOPIC_XXXX", "refused".getBytes(StandardCharsets.UTF_8)));
        } catch (Exception e) {
            System.err.println("as expected: " + e.getMessage());
        }
    }

    private static void consumption(String nameServer, String broker, String cluster, DefaultMQProducer producer) throws Exception {
        TransactionMQProducer transactions = transactions(nameServer);
        transactions.sendMessageInTransaction(message("TagA", "committed"), null);
        DefaultMQPushConsumer first = concurrent(nameServer, "frames-group", "a");
        DefaultMQPushConsumer ordered = ordered(nameServer);
        Thread.sleep(2_000);
        DefaultMQPushConsumer second = concurrent(nameServer, "frames-group", "b");
        DefaultMQPushConsumer filtering = new DefaultMQPushConsumer("frames-sql");
        filtering.setNamesrvAddr(nameServer);
        filtering.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        filtering.subscribe(TOPIC, MessageSelector.bySql("a > 5 AND b IS NULL"));
        filtering.registerMessageListener((MessageListenerConcurrently) (found, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        filtering.start();
        DefaultLitePullConsumer lite = new DefaultLitePullConsumer("frames-lite");
        lite.setNamesrvAddr(nameServer);
        lite.subscribe(TOPIC, "*");
        lite.start();
        lite.poll(2_000);
        lite.commit();
        DefaultMQPushConsumer replying = replying(nameServer);
        try {
            producer.request(new Message("frames-requests", "question".getBytes(StandardCharsets.UTF_8)), 8_000);
        } catch (Exception e) {
            System.err.println("request: " + e.getMessage());
        }
        Thread.sleep(3_000);
        tools(nameServer, broker, cluster);
        for (DefaultMQPushConsumer one : List.of(second, replying, filtering, ordered, first)) {
            one.shutdown();
        }
        lite.shutdown();
        transactions.shutdown();
        Thread.sleep(1_000);
        admin("deleteSubGroup", "-n", nameServer, "-b", broker, "-g", "frames-sql");
        admin("deleteTopic", "-n", nameServer, "-c", cluster, "-t", ORDERED);
    }

    private static void tools(String nameServer, String broker, String cluster) {
        String[][] commands = {
            {"clusterList"}, {"topicList"}, {"topicRoute", "-t", TOPIC}, {"topicStatus", "-t", TOPIC},
            {"topicClusterList", "-t", TOPIC}, {"consumerProgress", "-g", "frames-group"}, {"consumerProgress"},
            {"consumerStatus", "-g", "frames-group"}, {"consumerConnection", "-g", "frames-group"},
            {"producerConnection", "-g", "frames-producer", "-t", TOPIC}, {"brokerStatus", "-b", broker},
            {"brokerConsumeStats", "-b", broker}, {"queryCq", "-b", broker, "-t", TOPIC, "-q", "0", "-i", "0"},
            {"updateSubGroup", "-b", broker, "-g", "frames-made", "-r", "2"}, {"getConsumerConfig", "-g", "frames-group"},
            {"updateTopicPerm", "-b", broker, "-t", TOPIC, "-p", "6"}, {"queryMsgByKey", "-t", TOPIC, "-k", "order-1"},
            {"resetOffsetByTime", "-g", "frames-group", "-t", TOPIC, "-s", "-1"},
            {"cloneGroupOffset", "-s", "frames-group", "-d", "frames-made", "-t", TOPIC, "-o", "true"},
            {"statsAll", "-t", TOPIC, "-a"}, {"topicRoute", "-t", "frames-unknown"}, {"haStatus", "-b", broker}, {"cleanUnusedTopic", "-b", broker},
            {"updateKvConfig", "-s", "frames", "-k", "name", "-v", "value"}, {"deleteKvConfig", "-s", "frames", "-k", "name"},
            {"updateOrderConf", "-t", ORDERED, "-m", "put", "-v", "rival:2"}, {"updateOrderConf", "-t", ORDERED, "-m", "get"},
        };
        for (String[] command : commands) {
            String[] whole = new String[command.length + 2];
            whole[0] = command[0];
            whole[1] = "-n";
            whole[2] = nameServer;
            System.arraycopy(command, 1, whole, 3, command.length - 1);
            admin(whole);
        }
    }

    private static void admin(String... arguments) {
        try {
            MQAdminStartup.main0(arguments, null);
        } catch (RuntimeException e) {
            System.err.println(arguments[0] + ": " + e);
        }
    }

    private static DefaultMQPushConsumer concurrent(String nameServer, String group, String instance) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "TagA || TagB");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            boolean again = found.stream().anyMatch(one -> "TagB".equals(one.getTags()) && one.getReconsumeTimes() == 0);
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static DefaultMQPushConsumer ordered(String nameServer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("frames-ordered");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(ORDERED, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (found, context) -> ConsumeOrderlyStatus.SUCCESS);
        consumer.start();
        return consumer;
    }

    private static DefaultMQPushConsumer replying(String nameServer) throws Exception {
        DefaultMQProducer answers = new DefaultMQProducer("frames-answers");
        answers.setNamesrvAddr(nameServer);
        answers.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("frames-replying");
        consumer.setNamesrvAddr(nameServer);
        consumer.subscribe("frames-requests", "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt one : found) {
                try {
                    answers.send(MessageUtil.createReplyMessage(one, "answer".getBytes(StandardCharsets.UTF_8)));
                } catch (Exception e) {
                    System.err.println("reply: " + e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static TransactionMQProducer transactions(String nameServer) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("frames-transactions");
        producer.setNamesrvAddr(nameServer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    private static Message message(String tag, String body) {
        return new Message(TOPIC, tag, body.getBytes(StandardCharsets.UTF_8));
    }
}
