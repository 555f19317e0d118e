import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's own admin tools in one warm process, for tests/clients/mqadmin: a JSON object a line on the standard input, an answer
 * a line. It also has the clients whose connections the tools show.
 */
public final class AdminTool {
    private static final PrintStream ANSWERS = System.out;
    private static DefaultMQPushConsumer consumer;
    private static DefaultMQProducer producer;

    private AdminTool() {
    }

    public static void main(String[] args) throws Exception {
        // What the tools print is an answer's text, and must not come between the answers.
        System.setOut(System.err);
        forbidExit();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answer(new JSONObject().fluentPut("ready", true));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer = new JSONObject();
            try {
                JSONObject command = JSON.parseObject(line);
                switch (command.getString("do")) {
                    case "run" -> run(command, answer);
                    case "fill" -> fill(command, answer);
                    case "trace" -> trace(command, answer);
                    case "join" -> join(command, answer);
                    case "leave" -> leave();
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (Throwable e) {
                answer.put("error", e.toString());
            }
            answer(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    /** A command with wrong arguments ends its process. */
    @SuppressWarnings("removal")
    private static void forbidExit() {
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkExit(int status) {
                throw new SecurityException("exit " + status);
            }

            @Override
            public void checkPermission(java.security.Permission permission) {
            }
        });
    }

    private static void answer(JSONObject answer) {
        ANSWERS.println(answer);
        ANSWERS.flush();
    }

    /** One command of mqadmin: what it printed within its time. A command that goes on is interrupted then. */
    private static void run(JSONObject command, JSONObject answer) throws Exception {
        String[] arguments = command.getJSONArray("args").toArray(String.class);
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream printed = new PrintStream(text, true, StandardCharsets.UTF_8), before = System.err;
        System.setOut(printed);
        System.setErr(printed);
        Thread thread = new Thread(() -> MQAdminStartup.main0(arguments, null), "mqadmin");
        thread.setDaemon(true);
        thread.start();
        thread.join((long) (command.getDoubleValue("limit_s") * 1000));
        boolean ended = !thread.isAlive();
        String said = text.toString(StandardCharsets.UTF_8);
        System.setOut(before);
        System.setErr(before);
        if (!ended) {
            thread.interrupt();
            thread.join(2000);
        }
        answer.put("text", said);
        answer.put("ended", ended);
    }

    /** Sends messages with keys and tags to the queues of a topic in turn. */
    private static void fill(JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        DefaultMQProducer producer = new DefaultMQProducer("fill-producers");
        producer.setInstanceName("fill");
        producer.setNamesrvAddr(command.getString("name_server"));
        producer.start();
        List<String> ids = new ArrayList<>(), offsetIds = new ArrayList<>();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        queues.sort(null);
        for (int i = 0; i < command.getIntValue("count"); i++) {
            Message message = new Message(topic, "tag" + i % 2, "key-" + i, ("body " + i).getBytes(StandardCharsets.UTF_8));
            var sent = producer.send(message, queues.get(i % queues.size()), 10_000);
            ids.add(sent.getMsgId());
            offsetIds.add(sent.getOffsetMsgId());
        }
        producer.shutdown();
        answer.put("ids", ids);
        answer.put("offset_ids", offsetIds);
    }

    /** A traced producer sends, and a traced consumer gives each second message up: those are in the dead letters of its group then. */
    private static void trace(JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        DefaultMQProducer producer = new DefaultMQProducer("traced-producers", true, null);
        producer.setInstanceName("traced");
        producer.setNamesrvAddr(command.getString("name_server"));
        producer.start();
        List<String> ids = new ArrayList<>();
        int count = command.getIntValue("count");
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "traced", "traced-" + i, ("traced " + i).getBytes(StandardCharsets.UTF_8));
            ids.add(producer.send(message, 10_000).getMsgId());
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"), true, null);
        consumer.setInstanceName("traced");
        consumer.setNamesrvAddr(command.getString("name_server"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicInteger consumed = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.addAndGet(messages.size());
            context.setDelayLevelWhenNextConsume(-1);
            boolean good = ids.indexOf(messages.get(0).getMsgId()) % 2 == 0;
            return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        long deadline = System.currentTimeMillis() + 60_000;
        while (consumed.get() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        // What is given up is still on its way. The end of a client sends the traces that wait.
        Thread.sleep(2_000);
        consumer.shutdown();
        producer.shutdown();
        answer.put("ids", ids);
        answer.put("consumed", consumed.get());
    }

    /** A push consumer and a producer that stay, with fixed names; it returns when the consumer has had enough messages. */
    private static void join(JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setInstanceName("shown");
        consumer.setNamesrvAddr(command.getString("name_server"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicInteger count = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer = new DefaultMQProducer(command.getString("producers"));
        producer.setInstanceName("shown-producer");
        producer.setNamesrvAddr(command.getString("name_server"));
        producer.start();
        // The producer beats at once only where it has a connection to the broker.
        producer.send(new Message(command.getString("side_topic"), "hello".getBytes(StandardCharsets.UTF_8)), 10_000);
        long deadline = System.currentTimeMillis() + 60_000;
        while (count.get() < command.getIntValue("count") && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        answer.put("consumed", count.get());
        answer.put("client_id", consumer.buildMQClientId());
    }

    /** They go; the consumer commits what it has consumed. */
    private static void leave() {
        consumer.shutdown();
        producer.shutdown();
    }
}
