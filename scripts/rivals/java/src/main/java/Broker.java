import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The broker that a client process talks to: its admin calls, and one producer for each name server instance. */
final class Broker {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int STATS_ATTEMPTS = 100;
    /** Ten to the second: a broker registers a new topic with its next heartbeat, 30 s later at the latest. */
    private static final int ROUTE_ATTEMPTS = 600;
    /** Between refused sends: asking more often would take the processor from the broker that starts. */
    private static final int RETRY_MS = 20;

    private final String nameServer;
    private DefaultMQAdminExt admin;
    private final Map<Boolean, DefaultMQProducer> producers = new HashMap<>();

    Broker(String nameServer) {
        this.nameServer = nameServer;
    }

    /** Signs what a client sends; null without a login. The first line of the file is the user, the second the password. */
    static RPCHook hook() throws IOException {
        String file = System.getProperty("rival.login");
        if (file == null) {
            return null;
        }
        List<String> lines = Files.readAllLines(Path.of(file));
        return new AclClientRPCHook(new SessionCredentials(lines.get(0), lines.get(1)));
    }

    /** A client that knows the name server; one of another instance has connections of its own. */
    <T extends ClientConfig> T known(T client, String instance) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(instance);
        return client;
    }

    void makeTopic(JSONObject command) throws Exception {
        TopicConfig config = new TopicConfig(command.getString("topic"));
        config.setReadQueueNums(command.getIntValue("queues"));
        config.setWriteQueueNums(command.getIntValue("queues"));
        admin().createAndUpdateTopicConfig(command.getString("broker"), config);
        awaitRoute(config.getTopicName());
    }

    /**
     * A broker that is slow to register makes the name server deny a topic that exists already. So does one that was
     * stopped for two minutes, until its next heartbeat.
     */
    void awaitRoute(String topic) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                admin().examineTopicRouteInfo(topic);
                return;
            } catch (MQClientException e) {
                if (e.getResponseCode() != ResponseCode.TOPIC_NOT_EXIST || attempt == ROUTE_ATTEMPTS) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    /** Bytes of the log that queues and index do not hold yet. */
    long behindBytes(JSONObject command) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                Map<String, String> stats = admin().fetchBrokerRuntimeStats(command.getString("broker")).getTable();
                return Long.parseLong(stats.get("dispatchBehindBytes"));
            } catch (MQBrokerException e) {
                // Its statistics cannot be read in the first seconds after its start.
                if (attempt == STATS_ATTEMPTS) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    DefaultMQProducer producer(JSONObject command) throws MQClientException, IOException {
        boolean gathers = command.getBooleanValue("auto_batch");
        DefaultMQProducer known = producers.get(gathers);
        if (known == null) {
            known = known(new DefaultMQProducer("load" + (gathers ? "-gathers" : ""), hook()), "load" + gathers);
            known.setSendMsgTimeout(SEND_TIMEOUT_MS);
            known.setAutoBatch(gathers);
            known.start();
            producers.put(gathers, known);
        }
        return known;
    }

    /** Sends one message again and again until it is accepted: for the time of a restart. */
    void firstSend(JSONObject command, JSONObject answer) throws Exception {
        DefaultMQProducer sender = producer(command);
        String topic = command.getString("topic");
        long limit = System.nanoTime() + command.getLongValue("limit_s") * 1_000_000_000L;
        int refused = 0;
        while (true) {
            try {
                sender.send(new Message(topic, new byte[128]), 2_000);
                answer.put("refused", refused);
                return;
            } catch (MQClientException | RemotingException | MQBrokerException e) {
                refused++;
                if (System.nanoTime() > limit) {
                    throw e;
                }
                Thread.sleep(RETRY_MS);
            }
        }
    }

    private DefaultMQAdminExt admin() throws MQClientException, IOException {
        if (admin == null) {
            admin = known(new DefaultMQAdminExt(hook(), SEND_TIMEOUT_MS), "admin");
            admin.start();
        }
        return admin;
    }
}
