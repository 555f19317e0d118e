import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions of numbered messages. The number decides: of five, two are committed at once, one is rolled back at
 * once, one is committed and one rolled back when the broker asks. Writes a line into a file for each half message
 * that was acknowledged (`sent N`) and for each question (`asked N`). Arguments: name server, topic, producer group,
 * file, threads, pause in ms, first number, count, and `decides`, or `waits` to answer questions with "unknown".
 * It says on a line that it sends. After a line of its standard input it sends no more, which it says too, and after the next
 * it ends; questions are answered until then.
 */
public final class Transactions {
    private static final int BODY_BYTES = 100;
    private static final int AFTER_FAILURE_MS = 200;
    private static final int COMMITTED = 2;
    private static final int ROLLED_BACK = 3;
    private static final int COMMITTED_LATE = 4;
    private static final int KINDS = 5;

    private static PrintStream out;
    private static boolean decides;
    private static volatile boolean isOver;

    private static long number(byte[] body) {
        return Long.parseLong(new String(body, StandardCharsets.US_ASCII).trim());
    }

    private static synchronized void tell(String what, long number) {
        out.println(what + " " + number);
    }

    private static final class Decisions implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object unused) {
            long kind = number(message.getBody()) % KINDS;
            return kind < COMMITTED ? LocalTransactionState.COMMIT_MESSAGE
                : kind < ROLLED_BACK ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            long number = number(message.getBody());
            tell("asked", number);
            long kind = number % KINDS;
            if (kind >= ROLLED_BACK && !decides) {
                return LocalTransactionState.UNKNOW;
            }
            return kind < COMMITTED || kind >= ROLLED_BACK && kind < COMMITTED_LATE
                ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    private static void send(TransactionMQProducer producer, String topic, long number) throws InterruptedException {
        byte[] body = String.format("%-" + BODY_BYTES + "d", number).getBytes(StandardCharsets.US_ASCII);
        try {
            TransactionSendResult sent =
                producer.sendMessageInTransaction(new Message(topic, "tag", "n" + number, body), null);
            if (sent.getSendStatus() == SendStatus.SEND_OK) {
                tell("sent", number);
            }
        } catch (Exception error) {
            Thread.sleep(AFTER_FAILURE_MS);
        }
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        out = new PrintStream(new FileOutputStream(args[3], true), true);
        long pauseMs = Long.parseLong(args[5]);
        long first = Long.parseLong(args[6]);
        long count = Long.parseLong(args[7]);
        long end = count == Long.MAX_VALUE ? count : first + count;
        decides = args[8].equals("decides");
        TransactionMQProducer producer = new TransactionMQProducer(args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new Decisions());
        producer.start();
        AtomicLong next = new AtomicLong(first);
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[4]); n++) {
            Thread thread = new Thread(() -> {
                try {
                    for (long number = next.getAndIncrement(); number < end && !isOver;
                        number = next.getAndIncrement()) {
                        send(producer, topic, number);
                        Thread.sleep(pauseMs);
                    }
                } catch (InterruptedException error) {
                    Runtime.getRuntime().halt(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        System.out.println("{\"ready\":true}");
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        isOver = told.readLine() != null && end == Long.MAX_VALUE;
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("{\"sent\":true}");
        told.readLine();
        producer.shutdown();
        System.out.println("{\"ended\":true}");
    }
}
