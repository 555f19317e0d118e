package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.MQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPushConsumer;
import org.apache.rocketmq.client.producer.MQProducer;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.MQAdminExt;
import org.apache.rocketmq.tools.command.CommandUtil;

import static org.awaitility.Awaitility.await;

/**
 * The base of RocketMQ's integration tests, for servers that run already. It stands in front of the class of this name in
 * the tests' jar, which starts a name server and three brokers of its own, and has the members that the tests use.
 *
 * The properties test.namesrv, test.cluster and test.broker say where the servers are.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = System.getProperty("test.namesrv");

    protected static final String CLUSTER_NAME = System.getProperty("test.cluster");
    protected static final String BROKER1_NAME = System.getProperty("test.broker");
    protected static final String BROKER2_NAME = BROKER1_NAME;
    protected static final String BROKER3_NAME = BROKER1_NAME;

    // The tests' jar has these numbers in its classes.
    protected static final int BROKER_NUM = 3;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 2 * 60 * 1000;
    protected static final int QUEUE_NUMBERS = 8;

    // Tests that ask these fail: the servers are other processes.
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList = List.of();
    protected static Map<String, BrokerController> brokerControllerMap = Map.of();

    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    private static final int START_S = 30;
    private static final ExecutorService ENDING = Executors.newCachedThreadPool();
    private static DefaultMQAdminExt admin;

    public BaseConf() {
        waitBrokerRegistered(NAMESRV_ADDR, CLUSTER_NAME, 1);
    }

    public static void waitBrokerRegistered(String nameServer, String cluster, int brokers) {
        awaitRoute(cluster);
    }

    public boolean awaitDispatchMs(long timeMs) throws Exception {
        Thread.sleep(timeMs);
        return true;
    }

    // Topics and groups

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType type) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), type);
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopic();
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType type) {
        return initTopic(type);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        return initTopicWithName(topic);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample, TopicMessageType type) {
        return initTopicWithName(topic, type);
    }

    public static String initTopicWithName(String topic) {
        return makeTopic(topic, Map.of());
    }

    public static String initTopicWithName(String topic, TopicMessageType type) {
        return makeTopic(topic, Map.of("+message.type", type.getValue()));
    }

    private static String makeTopic(String topic, Map<String, String> attributes) {
        attempt(() -> admin().createTopic(CLUSTER_NAME, topic, QUEUE_NUMBERS, new HashMap<>(attributes)));
        awaitRoute(topic);
        return topic;
    }

    private static void awaitRoute(String topic) {
        await().atMost(START_S, TimeUnit.SECONDS).pollInterval(20, TimeUnit.MILLISECONDS).ignoreExceptions()
            .until(() -> !admin().examineTopicRouteInfo(topic).getQueueDatas().isEmpty());
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        attempt(() -> {
            for (String address : CommandUtil.fetchMasterAddrByClusterName(admin(), CLUSTER_NAME)) {
                admin().createAndUpdateSubscriptionGroupConfig(address, config);
            }
        });
        return group;
    }

    // One for all tests of the process: each start costs a connection and a handful of threads.
    private static synchronized DefaultMQAdminExt admin() {
        if (admin == null) {
            admin = newAdmin(NAMESRV_ADDR, 10_000);
            attempt(admin::start);
        }
        return admin;
    }

    private static DefaultMQAdminExt newAdmin(String nameServer, long timeoutMs) {
        DefaultMQAdminExt made = new DefaultMQAdminExt(timeoutMs);
        made.setInstanceName(UUID.randomUUID().toString());
        made.setNamesrvAddr(nameServer);
        return made;
    }

    public static Set<String> getBrokers() {
        return Set.of(BROKER1_NAME);
    }

    // Clients

    public static DefaultMQAdminExt getAdmin(String nameServer) {
        DefaultMQAdminExt made = newAdmin(nameServer, 3_000);
        made.setPollNameServerInterval(100);
        return keep(made);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic) {
        return getProducer(nameServer, topic, false);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, boolean tls) {
        return keep(new RMQNormalProducer(nameServer, topic, tls));
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, String group, String instance) {
        return keep(new RMQNormalProducer(nameServer, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String nameServer, String topic, TransactionListener listener) {
        return keep(new RMQTransactionalProducer(nameServer, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nameServer, String topic) {
        return keep(new RMQAsyncSendProducer(nameServer, topic));
    }

    public static RMQNormalConsumer getConsumer(
        String nameServer, String topic, String expression, AbstractListener listener) {
        return getConsumer(nameServer, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nameServer, String topic, String expression, AbstractListener listener, boolean tls) {
        return getConsumer(nameServer, initConsumerGroup(), topic, expression, listener, tls);
    }

    public static RMQNormalConsumer getConsumer(
        String nameServer, String group, String topic, String expression, AbstractListener listener) {
        return getConsumer(nameServer, group, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nameServer, String group, String topic, String expression, AbstractListener listener, boolean tls) {
        return keep(ConsumerFactory.getRMQNormalConsumer(nameServer, group, topic, expression, listener, tls));
    }

    private static synchronized <T> T keep(T client) {
        mqClients.add(client);
        return client;
    }

    public static synchronized void shutdown() {
        List<Object> all = List.copyOf(mqClients);
        mqClients.clear();
        shutdown(all);
    }

    // Beside the next test: a client's end may take 3 s. One that has ended already does not end again, and that is no failure.
    public static void shutdown(List<Object> clients) {
        clients.forEach(client -> ENDING.execute(() -> end(client)));
    }

    private static void end(Object client) {
        if (client instanceof AbstractMQProducer one) {
            one.shutdown();
        } else if (client instanceof AbstractMQConsumer one) {
            one.shutdown();
        } else if (client instanceof MQAdminExt one) {
            one.shutdown();
        } else if (client instanceof MQProducer one) {
            one.shutdown();
        } else if (client instanceof MQPullConsumer one) {
            one.shutdown();
        } else if (client instanceof MQPushConsumer one) {
            one.shutdown();
        }
    }

    /** What is done at the servers, or fails the test. */
    private interface Step {
        void take() throws Exception;
    }

    private static void attempt(Step step) {
        try {
            step.take();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
