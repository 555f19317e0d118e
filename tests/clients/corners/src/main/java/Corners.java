import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What few programs use, with RocketMQ's Java client: topics that a send makes, groups that a consumer makes, traces, namespaces, units.
 * Prints what is the same at any broker. Arguments: name server, topic.
 */
public final class Corners {
    private static final String CLUSTER = "DefaultCluster";
    private static final int MANY = 40;
    private static final int REQUEST_MS = 30_000;
    private static String address;
    private static String base;
    private static DefaultMQAdminExt admin;
    private static String broker;

    private interface Change {
        void to(DefaultMQProducer producer) throws Exception;
    }

    private interface ConsumerChange {
        void to(DefaultMQPushConsumer consumer) throws Exception;
    }

    private static String masked(String text) {
        return text.replace(base, "T");
    }

    /** The settings of a topic at the broker, or why it has none. */
    private static String topic(String name) {
        try {
            TopicConfig found = admin.examineTopicConfig(broker, name);
            return found.getReadQueueNums() + "/" + found.getWriteQueueNums() + " perm " + found.getPerm()
                + " flag " + found.getTopicSysFlag() + (found.isOrder() ? " ordered" : "");
        } catch (Exception error) {
            return reason(error);
        }
    }

    private static String reason(Throwable error) {
        if (error instanceof MQBrokerException refused) {
            return "code " + refused.getResponseCode();
        }
        if (error instanceof MQClientException failed) {
            return error.getCause() instanceof MQBrokerException
                ? reason(error.getCause()) : "client " + failed.getResponseCode();
        }
        return error.getClass().getSimpleName();
    }

    private static DefaultMQProducer producer(String group, Change change) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group + base);
        made.setNamesrvAddr(address);
        made.setInstanceName(group + base);
        made.setMqClientApiTimeout(REQUEST_MS);
        made.setSendMsgTimeout(REQUEST_MS);
        change.to(made);
        made.start();
        return made;
    }

    /** A send by a producer of its own; what came of it, and the topic that it made. */
    private static void sendsTo(String what, String name, Change change) throws Exception {
        DefaultMQProducer producer = producer("maker-" + what.replace(' ', '-'), change);
        String outcome;
        try {
            SendResult sent = producer.send(new Message(name, "tag", what.getBytes()));
            outcome = sent.getSendStatus().name();
        } catch (Exception error) {
            outcome = reason(error);
        }
        producer.shutdown();
        Facts.print("send " + what, outcome + ", topic " + topic(name));
    }

    private static void madeTopics() throws Exception {
        sendsTo("to a new topic", base + "-new", one -> { });
        sendsTo("with many queues", base + "-many", one -> one.setDefaultTopicQueueNums(MANY));
        sendsTo("with one queue", base + "-one", one -> one.setDefaultTopicQueueNums(1));
        sendsTo("as the cluster", base + "-cluster", one -> {
            one.setCreateTopicKey(CLUSTER);
            one.setDefaultTopicQueueNums(MANY);
        });
        sendsTo("as a plain topic", base + "-plain", one -> one.setCreateTopicKey(base + "-new"));
        sendsTo("as no topic", base + "-none", one -> one.setCreateTopicKey("no-such-topic"));
        sendsTo("to a retry topic", "%RETRY%" + base + "-nobody", one -> { });
        sendsTo("in unit mode", base + "-unit", one -> one.setUnitMode(true));
        sendsTo("to one that is there", base + "-new", one -> { });
    }

    private static void set(String name, String value) throws Exception {
        Properties changes = new Properties();
        changes.put(name, value);
        admin.updateBrokerConfig(broker, changes);
    }

    /** A member of a group that takes what comes, and fails each message the first time if it is told so. */
    private static final class Taker {
        private final Set<String> taken = new ConcurrentSkipListSet<>();
        private final DefaultMQPushConsumer consumer;

        Taker(String group, String name, boolean fails, ConsumerChange change) throws Exception {
            consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(address);
            consumer.setInstanceName("taker-" + group);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            change.to(consumer);
            consumer.subscribe(name, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                taken.add(masked(message.getTopic()) + ":" + new String(message.getBody()) + ":" + message.getReconsumeTimes());
                return fails && message.getReconsumeTimes() == 0
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        void await(int count) throws Exception {
            Facts.until(() -> taken.size() >= count);
        }

        void close() {
            consumer.shutdown();
        }
    }

    private static String group(String name) {
        try {
            SubscriptionGroupConfig found = admin.examineSubscriptionGroupConfig(broker, name);
            if (found == null) {
                return "none";
            }
            return "consumes " + found.isConsumeEnable() + " broadcasts " + found.isConsumeBroadcastEnable() + " from min "
                + found.isConsumeFromMinEnable() + " ordered " + found.isConsumeMessageOrderly() + " retry queues "
                + found.getRetryQueueNums() + " retries " + found.getRetryMaxTimes() + " flag " + found.getGroupSysFlag()
                + " minutes " + found.getConsumeTimeoutMinute() + " rings " + found.isNotifyConsumerIdsChangedEnable();
        } catch (Exception error) {
            return reason(error);
        }
    }

    private static void madeGroups() throws Exception {
        String name = base + "-new";
        Taker made = new Taker(base + "-made", name, false, one -> { });
        made.await(2);
        Facts.print("group made by its member", group(base + "-made"));
        Facts.print("its retry topic", topic("%RETRY%" + base + "-made"));
        made.close();
        set("autoCreateSubscriptionGroup", "false");
        Taker refused = new Taker(base + "-refused", name, false, one -> { });
        Thread.sleep(6_000);
        Facts.print("group that may not be made", group(base + "-refused") + ", taken " + refused.taken);
        Facts.print("its retry topic", topic("%RETRY%" + base + "-refused"));
        set("autoCreateSubscriptionGroup", "true");
        refused.await(2);
        Facts.print("once it may be made", group(base + "-refused") + ", taken " + refused.taken.size());
        refused.close();
    }

    private static Taker takesUnits() throws Exception {
        return new Taker(base + "-units", base + "-unit", true, one -> {
            one.setUnitMode(true);
            one.setUnitName("east");
        });
    }

    private static void units(Taker taker) throws Exception {
        taker.await(2);
        Facts.print("unit taken", taker.taken);
        Facts.print("unit retry topic", topic("%RETRY%" + base + "-units"));
        Set<String> names = new TreeSet<>();
        for (Connection one : admin.examineConsumerConnectionInfo(base + "-units").getConnectionSet()) {
            String id = one.getClientId();
            names.add(id.substring(id.lastIndexOf('@')));
        }
        Facts.print("unit client", names);
        taker.close();
    }

    /** A producer and a member of a group, both with a namespace. */
    private static final class Named {
        private final String what;
        private final String name;
        private final String group;
        private final SendResult sent;
        private final Taker taker;

        Named(String what, Change ofProducer, ConsumerChange ofConsumer) throws Exception {
            this.what = what;
            name = base + "-" + what;
            group = base + "-group-" + what;
            DefaultMQProducer producer = producer("named-" + what, ofProducer);
            sent = producer.send(new Message(name, "tag", "named".getBytes()));
            producer.shutdown();
            taker = new Taker(group, name, true, ofConsumer);
        }

        void report(String prefix) throws Exception {
            taker.await(2);
            Facts.print(what + " send", sent.getSendStatus() + " to " + masked(sent.getMessageQueue().getTopic()));
            Facts.print(what + " taken", taker.taken);
            Facts.print(what + " topic", topic(prefix + name));
            Facts.print(what + " plain topic", topic(name));
            Facts.print(what + " group", group(prefix + group));
            Facts.print(what + " retry topic", topic("%RETRY%" + prefix + group));
            taker.close();
        }
    }

    private static void traces() throws Exception {
        String name = base + "-traced";
        DefaultMQProducer producer = new DefaultMQProducer("tracers" + base, null, true, null);
        producer.setNamesrvAddr(address);
        producer.start();
        SendResult sent = producer.send(new Message(name, "tag", "key", "traced".getBytes()));
        DefaultMQPushConsumer consumer = 
            new DefaultMQPushConsumer("traced" + base, null, new AllocateMessageQueueAveragely(), true, null);
        Set<String> taken = new ConcurrentSkipListSet<>();
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(name, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> taken.add(new String(one.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Facts.until(() -> !taken.isEmpty());
        Facts.print("traced", taken);
        Facts.print("trace seen", Facts.until(() -> Traces.of(address, sent.getMsgId()).size() >= Traces.LINES));
        for (String line : Traces.of(address, sent.getMsgId())) {
            Facts.print("trace", masked(line));
        }
        Facts.print("trace topic", topic("RMQ_SYS_TRACE_TOPIC"));
        consumer.shutdown();
        producer.shutdown();
    }

    /** The last: a broker makes no topics by TBW102 any more once it has refused to, until it starts again. */
    private static void noTopics() throws Exception {
        set("autoCreateTopicEnable", "false");
        sendsTo("while none are made", base + "-off", one -> { });
        sendsTo("as the cluster while none are made", base + "-off-cluster", one -> one.setCreateTopicKey(CLUSTER));
    }

    public static void main(String[] args) throws Exception {
        address = args[0];
        base = args[1];
        admin = new DefaultMQAdminExt(REQUEST_MS);
        admin.setMqClientApiTimeout(REQUEST_MS);
        admin.setNamesrvAddr(address);
        admin.setInstanceName("admin");
        admin.start();
        broker = admin.examineTopicRouteInfo(CLUSTER).getBrokerDatas().get(0).selectBrokerAddr();
        madeTopics();
        Taker unit = takesUnits();
        Named first = new Named("v1", one -> one.setNamespace("NS"), one -> one.setNamespace("NS"));
        Named second = new Named("v2", one -> one.setNamespaceV2("NS"), one -> one.setNamespaceV2("NS"));
        madeGroups();
        units(unit);
        first.report("NS%");
        second.report("");
        traces();
        noTopics();
        admin.shutdown();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
