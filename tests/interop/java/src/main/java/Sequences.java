import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Producers, or a push consumer, of messages with sequence numbers; each writes what it was told, or given, into a file.
 *
 * <pre>
 * Sequences produce NAMESRV BROKERS TOPIC FOLDER PRODUCERS PAUSE_MS FIRST COUNT
 * Sequences consume NAMESRV BROKERS TOPIC FILE GROUP INSTANCE THREADS LIMIT
 * </pre>
 *
 * It says {"ready":true}, ends after a line on its standard input, and says {"stopped":true}. README.md has the rows.
 */
public final class Sequences {
    private static final int IN_FLIGHT = 16;
    private static final int BODY_BYTES = 120;
    private static final int AFTER_FAILURE_MS = 200;
    private static final int LATE = 3;
    private static final int FAILS = 7;

    private static List<String> brokers;
    private static String address;
    private static String topic;
    private static volatile boolean isOver;

    /** Rows of whole numbers; each is in the file when `add` returns. */
    private static final class Rows {
        private final FileChannel file;

        Rows(Path path) throws IOException {
            file = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }

        synchronized void add(long... row) {
            ByteBuffer bytes = ByteBuffer.allocate(8 * row.length).order(ByteOrder.nativeOrder());
            for (long one : row) {
                bytes.putLong(one);
            }
            bytes.flip();
            try {
                file.write(bytes);
            } catch (IOException error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }
    }

    /** Sends its messages in turn: an odd producer waits for each reply, an even one has some under way. */
    private static final class Numbered extends Thread {
        private final int producer;
        private final long first;
        private final long count;
        private final long pauseMs;
        private final Rows rows;
        private final DefaultMQProducer client;
        private final Semaphore free = new Semaphore(IN_FLIGHT);
        private volatile boolean hasFailed;

        Numbered(int producer, Path folder, long pauseMs, long first, long count) throws Exception {
            this.producer = producer;
            this.pauseMs = pauseMs;
            this.first = first;
            this.count = count;
            rows = new Rows(folder.resolve("producer-" + producer + ".rows"));
            client = new DefaultMQProducer("producers-" + topic);
            client.setNamesrvAddr(address);
            client.setInstanceName("producer-" + producer);
            client.start();
        }

        private Message message(long number) {
            ByteBuffer body = ByteBuffer.allocate(BODY_BYTES);
            body.putLong(producer).putLong(number);
            Message made = new Message(topic, "tag", "p" + producer + "-" + number, body.array());
            if (number % 10 == LATE) {
                made.setDelayTimeLevel(1 + (int) (number / 10 % 2));
            }
            return made;
        }

        private void told(long number, SendResult result) {
            hasFailed = result == null;
            boolean stored = result != null && result.getSendStatus() == SendStatus.SEND_OK;
            long place = -1;
            if (stored) {
                try {
                    place = MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getOffset();
                } catch (Exception error) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            }
            rows.add(
                stored ? brokers.indexOf(result.getMessageQueue().getBrokerName()) : -1,
                number, stored ? 0 : 2, 0, stored ? result.getMessageQueue().getQueueId() : -1,
                stored ? result.getQueueOffset() : -1, place, 0, System.nanoTime());
        }

        private void send(long number) throws InterruptedException {
            if (producer % 2 == 1) {
                try {
                    told(number, client.send(message(number)));
                } catch (Exception error) {
                    told(number, null);
                }
                return;
            }
            free.acquire();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    told(number, result);
                    free.release();
                }

                @Override
                public void onException(Throwable error) {
                    told(number, null);
                    free.release();
                }
            };
            try {
                client.send(message(number), callback);
            } catch (Exception error) {
                told(number, null);
                free.release();
            }
        }

        @Override
        public void run() {
            try {
                for (long number = first; number - first < count && !isOver; number++) {
                    send(number);
                    Thread.sleep(hasFailed ? AFTER_FAILURE_MS : pauseMs);
                }
                free.acquire(IN_FLIGHT);
            } catch (InterruptedException error) {
                Runtime.getRuntime().halt(1);
            }
            client.shutdown();
        }
    }

    private static void produce(String[] arguments) throws Exception {
        List<Numbered> producers = new ArrayList<>();
        for (int producer = 0; producer < Integer.parseInt(arguments[5]); producer++) {
            producers.add(new Numbered(
                producer, Path.of(arguments[4]), Long.parseLong(arguments[6]),
                Long.parseLong(arguments[7]), Long.parseLong(arguments[8])));
        }
        for (Numbered one : producers) {
            one.start();
        }
        System.out.println("{\"ready\":true}");
        awaitLine();
        isOver = Long.parseLong(arguments[8]) == Long.MAX_VALUE;
        for (Numbered one : producers) {
            one.join();
        }
    }

    private static void consume(String[] arguments) throws Exception {
        Rows rows = new Rows(Path.of(arguments[4]));
        String group = arguments[5];
        int limit = Integer.parseInt(arguments[8]);
        AtomicInteger given = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(arguments[6]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(Integer.parseInt(arguments[7]));
        consumer.setConsumeThreadMax(Integer.parseInt(arguments[7]));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean fails = false;
            for (MessageExt message : messages) {
                if (given.incrementAndGet() > limit) {
                    awaitTheEnd();
                }
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                long producer = body.getLong();
                long number = body.getLong();
                fails = number % 10 == FAILS && message.getReconsumeTimes() == 0;
                rows.add(
                    brokers.indexOf(context.getMessageQueue().getBrokerName()),
                    context.getMessageQueue().getTopic().equals(topic) ? 0 : 2, message.getQueueId(),
                    message.getQueueOffset(), message.getCommitLogOffset(), producer, number,
                    message.getReconsumeTimes(), fails ? 1 : 0, System.nanoTime());
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("{\"ready\":true}");
        awaitLine();
        consumer.shutdown();
    }

    /** The message stays unconsumed: even the interrupt of a shutdown must not hand it back. */
    private static void awaitTheEnd() {
        CountDownLatch never = new CountDownLatch(1);
        while (true) {
            try {
                never.await();
            } catch (InterruptedException error) {
                continue;
            }
        }
    }

    private static void awaitLine() throws IOException {
        new BufferedReader(new InputStreamReader(System.in)).readLine();
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[1];
        brokers = List.of(arguments[2].split(","));
        topic = arguments[3];
        if (arguments[0].equals("produce")) {
            produce(arguments);
        } else {
            consume(arguments);
        }
        System.out.println("{\"stopped\":true}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
