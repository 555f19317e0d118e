package scenario;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Service;

/**
 * RocketMQ's starter for Spring as applications use it: a template, and listeners by annotation.
 * Prints what is the same at any broker. Arguments: name server, topic.
 */
@SpringBootApplication
public class SpringScenario {
    private static final int COUNT = 20;
    private static final long WAIT_MS = 60_000;
    private static final long SETTLE_MS = 2_000;
    private static final int SEND_MS = 30_000;
    private static final Map<String, List<String>> GOT = new ConcurrentHashMap<>();

    private static void got(String listener, String body) {
        GOT.computeIfAbsent(listener, any -> java.util.Collections.synchronizedList(new ArrayList<>())).add(body);
    }

    /** The distinct bodies that a listener got, of those that begin so. */
    private static Set<String> bodies(String listener, String kind) {
        Set<String> found = new TreeSet<>(List.copyOf(GOT.getOrDefault(listener, List.of())));
        found.removeIf(body -> !body.startsWith(kind));
        return found;
    }

    private static void until(BooleanSupplier isDone) throws InterruptedException {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!isDone.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
    }

    private static void fact(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    @Service
    @RocketMQMessageListener(topic = "${scenario.topic}", consumerGroup = "all-${scenario.topic}")
    public static class All implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            got("all", body);
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${scenario.topic}", consumerGroup = "red-${scenario.topic}", selectorExpression = "red")
    public static class Red implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            got("red", new String(message.getBody()) + " " + message.getKeys());
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${scenario.topic}-orders", consumerGroup = "orders-${scenario.topic}", consumeMode = ConsumeMode.ORDERLY)
    public static class Orders implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            got("orders", body);
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${scenario.topic}-failing", consumerGroup = "failing-${scenario.topic}")
    public static class Failing implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            got("failing", new String(message.getBody()) + " " + message.getReconsumeTimes());
            if (message.getReconsumeTimes() == 0) {
                throw new IllegalStateException("the first time fails");
            }
        }
    }

    @RocketMQTransactionListener
    public static class Transactions implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return RocketMQLocalTransactionState.valueOf((String) argument);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return RocketMQLocalTransactionState.COMMIT;
        }
    }

    private static void send(RocketMQTemplate template, String topic) throws Exception {
        Set<String> statuses = new ConcurrentSkipListSet<>();
        for (int number = 0; number < COUNT; number++) {
            String tag = number % 2 == 0 ? "red" : "blue";
            Message<String> message = MessageBuilder.withPayload("sync-" + number).setHeader(RocketMQHeaders.KEYS, "k" + number).build();
            statuses.add(template.syncSend(topic + ":" + tag, message, SEND_MS).getSendStatus().name());
        }
        fact("sync", statuses);
        CountDownLatch open = new CountDownLatch(COUNT);
        for (int number = 0; number < COUNT; number++) {
            template.asyncSend(topic, "async-" + number, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    statuses.add(error.toString());
                    open.countDown();
                }
            }, SEND_MS);
            template.sendOneWay(topic, "oneway-" + number);
        }
        fact("async open", !open.await(WAIT_MS, TimeUnit.MILLISECONDS) + " " + statuses);
        List<Message<String>> batch = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            batch.add(MessageBuilder.withPayload("batch-" + number).build());
            template.syncSendOrderly(topic + "-orders", "order-" + number, "one customer", SEND_MS);
            template.syncSend(topic + "-failing", "fails-" + number);
        }
        fact("batch", template.syncSend(topic, batch, SEND_MS).getSendStatus());
        Message<String> late = MessageBuilder.withPayload("late").build();
        fact("late", template.syncSend(topic, late, SEND_MS, 1).getSendStatus());
        fact("timed", template.syncSendDelayTimeSeconds(topic, "timed", 2).getSendStatus());
        for (String outcome : List.of("COMMIT", "ROLLBACK")) {
            Message<String> message = MessageBuilder.withPayload("transaction-" + outcome).build();
            fact(outcome, template.sendMessageInTransaction(topic, message, outcome).getLocalTransactionState());
        }
    }

    private static void run(String nameServer, String topic) throws Exception {
        SpringApplication application = new SpringApplication(SpringScenario.class);
        application.setBannerMode(Banner.Mode.OFF);
        application.setWebApplicationType(WebApplicationType.NONE);
        application.setDefaultProperties(Map.of(
            "rocketmq.name-server", nameServer, "rocketmq.producer.group", "producers-" + topic,
            "rocketmq.producer.send-message-timeout", SEND_MS, "scenario.topic", topic, "logging.level.root", "OFF"));
        try (ConfigurableApplicationContext context = application.run()) {
            send(context.getBean(RocketMQTemplate.class), topic);
            until(() -> bodies("all", "").size() >= 4 * COUNT + 3 && bodies("red", "").size() == COUNT / 2
                && bodies("orders", "").size() == COUNT && bodies("failing", "").size() == 2 * COUNT);
            Thread.sleep(SETTLE_MS);
            for (String kind : List.of("sync", "async", "oneway", "batch", "late", "timed")) {
                fact("got " + kind, bodies("all", kind).size());
            }
            fact("got transactions", bodies("all", "transaction"));
            fact("got red", bodies("red", ""));
            fact("got orders", new ArrayList<>(GOT.getOrDefault("orders", List.of())));
            fact("got failing", bodies("failing", "").size());
        }
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            run(arguments[0], arguments[1]);
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        // Threads of the client would keep the process.
        System.exit(status);
    }
}
