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
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages of all kinds on one topic, and the members of groups that consume them; each writes what it was told, or
 * given, into a file, as whole numbers.
 *
 * <pre>
 * Mixed produce NAMESRV TOPIC FILE PAUSE_MS
 * Mixed consume NAMESRV TOPIC FILE GROUP INSTANCE FAILS_EVERY FAILS_TIMES RECONSUME_MAX
 * </pre>
 *
 * It says {"ready":true}. A producer sends no more after a line, says {"sent":true}, goes on to reply to questions
 * about transactions, and ends after the next line; a consumer ends after the first. README.md has the rows.
 */
public final class Mixed {
    private static final int SINGLE = 0;
    private static final int BATCH = 1;
    private static final int LEVEL = 2;
    private static final int TIMER = 3;
    private static final int TRANSACTION = 4;
    private static final int KINDS = 5;
    private static final int BATCH_SIZE = 8;
    private static final int BODY_BYTES = 120;
    private static final int AFTER_FAILURE_MS = 200;
    private static final int FATES = 5;
    private static final int ROLLED_BACK = 2;
    private static final int COMMITTED_LATE = 3;

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

    private static Message message(long kind, long number) {
        ByteBuffer body = ByteBuffer.allocate(BODY_BYTES);
        body.putLong(kind).putLong(number);
        return new Message(topic, "tag", "k" + kind + "-" + number, body.array());
    }

    /** Sends the messages of one kind in turn, each when the one before it has its reply. */
    private static final class Sender extends Thread {
        private final int kind;
        private final long pauseMs;
        private final Rows rows;
        private final DefaultMQProducer client;

        Sender(int kind, long pauseMs, Rows rows, DefaultMQProducer client) {
            this.kind = kind;
            this.pauseMs = pauseMs;
            this.rows = rows;
            this.client = client;
        }

        private SendResult send(long number) throws Exception {
            Message made = message(kind, number);
            if (kind == BATCH) {
                List<Message> batch = new ArrayList<>();
                for (int n = 0; n < BATCH_SIZE; n++) {
                    batch.add(message(kind, number + n));
                }
                return client.send(batch);
            }
            if (kind == TRANSACTION) {
                return ((TransactionMQProducer) client).sendMessageInTransaction(made, null);
            }
            if (kind == LEVEL) {
                made.setDelayTimeLevel(1 + (int) (number % 2));
            } else if (kind == TIMER && number % 3 == 0) {
                made.setDelayTimeSec(3);
            } else if (kind == TIMER && number % 3 == 1) {
                made.setDelayTimeMs(1_700);
            } else if (kind == TIMER) {
                made.setDeliverTimeMs(System.currentTimeMillis() + 2_500);
            }
            return client.send(made);
        }

        /** A row for each message; the place is the log offset of what the broker stored first, or -1. */
        private boolean tell(long number, int count, SendResult result) {
            boolean stored = result != null && result.getSendStatus() == SendStatus.SEND_OK;
            // The client keeps no place of a half message.
            String[] ids = stored && kind != TRANSACTION ? result.getOffsetMsgId().split(",") : null;
            for (int n = 0; n < count; n++) {
                long place = -1;
                if (ids != null) {
                    try {
                        place = MessageDecoder.decodeMessageId(ids[n]).getOffset();
                    } catch (Exception error) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                }
                rows.add(kind, number + n, stored ? 0 : 2, place, System.nanoTime());
            }
            return stored;
        }

        @Override
        public void run() {
            int count = kind == BATCH ? BATCH_SIZE : 1;
            try {
                for (long number = 0; !isOver; number += count) {
                    SendResult result = null;
                    try {
                        result = send(number);
                    } catch (Exception failed) {
                        // The row says so.
                    }
                    Thread.sleep(tell(number, count, result) ? pauseMs : AFTER_FAILURE_MS);
                }
            } catch (InterruptedException error) {
                Runtime.getRuntime().halt(1);
            }
        }
    }

    /** The number decides: of five, two are committed and one is rolled back at once, two when the broker asks. */
    private static final class Fates implements TransactionListener {
        private static LocalTransactionState fate(byte[] body, boolean isAsked) {
            long one = ByteBuffer.wrap(body).getLong(8) % FATES;
            if (one < ROLLED_BACK || one == COMMITTED_LATE && isAsked) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return one == ROLLED_BACK || isAsked
                ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object unused) {
            return fate(message.getBody(), false);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return fate(message.getBody(), true);
        }
    }

    private static void produce(String[] arguments) throws Exception {
        Rows rows = new Rows(Path.of(arguments[3]));
        long pauseMs = Long.parseLong(arguments[4]);
        DefaultMQProducer plain = new DefaultMQProducer("mixed-plain");
        TransactionMQProducer deciding = new TransactionMQProducer("mixed-deciding");
        deciding.setTransactionListener(new Fates());
        List<Sender> senders = new ArrayList<>();
        for (int kind = SINGLE; kind < KINDS; kind++) {
            senders.add(new Sender(kind, pauseMs, rows, kind == TRANSACTION ? deciding : plain));
        }
        for (DefaultMQProducer one : List.of(plain, deciding)) {
            one.setNamesrvAddr(address);
            one.start();
        }
        senders.forEach(Thread::start);
        System.out.println("{\"ready\":true}");
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
        told.readLine();
        isOver = true;
        for (Sender one : senders) {
            one.join();
        }
        System.out.println("{\"sent\":true}");
        told.readLine();
        plain.shutdown();
        deciding.shutdown();
    }

    private static void consume(String[] arguments) throws Exception {
        Rows rows = new Rows(Path.of(arguments[3]));
        int failsEvery = Integer.parseInt(arguments[6]);
        int failsTimes = Integer.parseInt(arguments[7]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[4]);
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName(arguments[5]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes(Integer.parseInt(arguments[8]));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean fails = false;
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                long kind = body.getLong();
                long number = body.getLong();
                fails = failsEvery > 0 && number % failsEvery == failsEvery - 1
                    && message.getReconsumeTimes() < failsTimes;
                rows.add(
                    kind, number, message.getCommitLogOffset(), message.getReconsumeTimes(), fails ? 1 : 0,
                    System.nanoTime());
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("{\"ready\":true}");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        consumer.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        address = arguments[1];
        topic = arguments[2];
        if (arguments[0].equals("produce")) {
            produce(arguments);
        } else {
            consume(arguments);
        }
        System.out.println("{\"ended\":true}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
