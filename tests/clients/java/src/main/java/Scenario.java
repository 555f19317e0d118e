import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's Java client as its users write it: sends of all kinds, a group of two members, tags, retries, a restart.
 * Prints what is the same at any broker. Arguments: name server, topic.
 */
public final class Scenario {
    private static final int COUNT = 30;
    private static final int ROUND = 8;
    private static final int QUEUES = 4;
    private static final int REQUEST_MS = 30_000;
    private static final int LARGE = 100_000;
    private static final String[] TAGS = {"red", "green", "blue"};
    private static String address;
    private static String topic;
    private static DefaultMQProducer producer;
    private static int rounds;

    private static Message message(String name, String tag) {
        Message made = new Message(topic, tag, "key-" + name, name.getBytes());
        made.putUserProperty("name", name);
        made.putUserProperty("mine", "grün " + name);
        return made;
    }

    private static List<Message> messages(String kind) {
        List<Message> made = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            made.add(message(kind + "-" + number, TAGS[number % TAGS.length]));
        }
        return made;
    }

    private static void sendOneByOne(String kind) throws Exception {
        Set<String> statuses = new TreeSet<>();
        Set<Integer> queues = new TreeSet<>();
        for (Message message : messages(kind)) {
            SendResult result = producer.send(message);
            statuses.add(result.getSendStatus().name());
            queues.add(result.getMessageQueue().getQueueId());
        }
        Facts.print("send " + kind, statuses + " queues " + queues);
    }

    private static void sendAllWays() throws Exception {
        sendOneByOne("sync");
        Set<String> statuses = new ConcurrentSkipListSet<>();
        CountDownLatch answered = new CountDownLatch(COUNT);
        for (Message message : messages("async")) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    statuses.add(result.getSendStatus().name());
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    statuses.add(error.toString());
                    answered.countDown();
                }
            });
        }
        answered.await(30, TimeUnit.SECONDS);
        Facts.print("send async", statuses + " open " + answered.getCount());
        for (Message message : messages("oneway")) {
            producer.sendOneway(message);
        }
        SendResult batch = producer.send(messages("batch"));
        Facts.print("send batch", batch.getSendStatus() + " ids " + batch.getOffsetMsgId().split(",").length);
        Message large = message("large", "red");
        large.setBody(new byte[LARGE]);
        Facts.print("send large", producer.send(large).getSendStatus());
        Message late = message("late", "red");
        late.setDelayTimeLevel(1);
        Facts.print("send late", producer.send(late).getSendStatus());
        SendResult chosen = producer.send(message("chosen", "red"), (queues, one, key) -> queues.get((Integer) key), 2);
        Facts.print("send chosen", chosen.getSendStatus() + " queue " + chosen.getMessageQueue().getQueueId());
    }

    /** Which members got the messages of a round of sends, each with the queues that it got them from. */
    private static Map<String, Set<Integer>> split(Group group) throws Exception {
        String kind = "round" + rounds++ + "-";
        for (int number = 0; number < ROUND; number++) {
            producer.send(message(kind + number, "round"));
        }
        Facts.until(() -> group.count(kind) == ROUND);
        Map<String, Set<Integer>> found = new TreeMap<>();
        group.seen.forEach((name, tries) -> {
            if (name.startsWith(kind)) {
                tries.forEach(got -> found.computeIfAbsent(got.member(), any -> new TreeSet<>()).add(got.queue()));
            }
        });
        return found;
    }

    /** Sends rounds until the members share the queues as they should. */
    private static void awaitSplit(String fact, Group group, int members) throws Exception {
        Map<String, Set<Integer>> last = new TreeMap<>();
        Facts.until(() -> {
            last.clear();
            last.putAll(split(group));
            return last.size() == members && last.values().stream().allMatch(one -> one.size() == QUEUES / members);
        });
        Facts.print(fact, last);
    }

    private static void share() throws Exception {
        Group group = new Group(address, "share-" + topic, topic, "*", false);
        DefaultMQPushConsumer one = group.join("one");
        int sent = 4 * COUNT + 3;
        Facts.until(() -> group.seen.size() >= sent);
        for (String kind : List.of("sync", "async", "oneway", "batch", "large", "late", "chosen")) {
            Facts.print("got " + kind, group.count(kind));
        }
        Group.Got large = group.seen.getOrDefault("large", List.of(new Group.Got("", 0, "", 0, "", "", "", 0))).get(0);
        Facts.print("got large bytes", large.length());
        Set<String> wrong = new TreeSet<>();
        group.seen.forEach((name, tries) -> tries.forEach(got -> {
            boolean isRight = got.keys().equals("key-" + name) && got.mine().equals("grün " + name);
            if (!isRight || !got.topic().equals(topic) || got.times() != 0) {
                wrong.add(name + " " + got);
            }
        }));
        Facts.print("got wrong", wrong);
        DefaultMQPushConsumer two = group.join("two");
        awaitSplit("two members", group, 2);
        Facts.settle();
        one.shutdown();
        awaitSplit("one has gone", group, 1);
        Facts.print("got rounds", group.count("round") == (long) rounds * ROUND);
        two.shutdown();
    }

    private static void filterAndGoOn() throws Exception {
        Group group = new Group(address, "tags-" + topic, topic, "red || blue", false);
        DefaultMQPushConsumer first = group.join("tags");
        int wanted = 4 * COUNT * 2 / TAGS.length + 3;
        Facts.until(() -> group.seen.size() >= wanted);
        Facts.settle();
        Set<String> tags = new TreeSet<>();
        group.seen.values().forEach(tries -> tries.forEach(got -> tags.add(got.tags())));
        Facts.print("by tags", tags + " " + group.seen.size());
        first.shutdown();
        sendOneByOne("away");
        Group again = new Group(address, "tags-" + topic, topic, "red || blue", false);
        DefaultMQPushConsumer second = again.join("tags");
        Facts.until(() -> again.count("away") == COUNT * 2 / TAGS.length);
        Facts.settle();
        Facts.print("goes on with", again.count("away"));
        Facts.print("repeats", again.seen.size() - again.count("away"));
        second.shutdown();
    }

    private static void retry() throws Exception {
        for (int number = 0; number < COUNT; number++) {
            producer.send(message("retry-" + number, "again"));
        }
        Group group = new Group(address, "retry-" + topic, topic, "again", true);
        DefaultMQPushConsumer consumer = group.join("retry");
        Facts.until(() -> group.seen.size() == COUNT && group.seen.values().stream().allMatch(tries -> tries.size() >= 2));
        Facts.settle();
        Set<String> histories = new TreeSet<>();
        group.seen.values().forEach(tries -> histories.add(history(tries)));
        Facts.print("retried", group.seen.size() + " as " + histories);
        consumer.shutdown();
    }

    private static String history(Collection<Group.Got> tries) {
        List<String> found = new ArrayList<>();
        tries.forEach(got -> found.add((got.topic().equals(topic) ? "own" : got.topic()) + ":" + got.times()));
        return String.join(" ", found);
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        topic = arguments[1];
        producer = new DefaultMQProducer("producers-" + topic, Login.hook());
        producer.setNamesrvAddr(address);
        // For a machine that has much else to do.
        producer.setSendMsgTimeout(REQUEST_MS);
        producer.setMqClientApiTimeout(REQUEST_MS);
        try {
            producer.start();
            sendAllWays();
            share();
            filterAndGoOn();
            retry();
            producer.shutdown();
        } catch (Exception error) {
            // Threads of the client would keep the program alive.
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
