import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Sends numbered messages until the file `until` is there, whatever happens to the broker meanwhile, and says which numbers were
 * answered with SEND_OK. It looks for the broker's master each second; a producer does by default each 30 s.
 */
public final class Numbered {
    private static final int PAUSE_MS = 20;
    private static final String FILLER = "x".repeat(200);

    private final AtomicLong next = new AtomicLong();
    private final Queue<Long> acknowledged = new ConcurrentLinkedQueue<>();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicReference<String> lastError = new AtomicReference<>();
    private final String topic;
    private final Path until;

    private Numbered(String topic, Path until) {
        this.topic = topic;
        this.until = until;
    }

    /** Name servers, topic, the file `until`, and how many threads send; prints one JSON object at the end. */
    public static void main(String[] args) throws Exception {
        JSONObject answer = new JSONObject();
        new Numbered(args[1], Path.of(args[2])).run(args[0], Integer.parseInt(args[3]), answer);
        System.out.println(answer);
        System.exit(0);
    }

    private void run(String nameServers, int threads, JSONObject answer) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("numbered");
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName("numbered" + System.nanoTime());
        producer.setPollNameServerInterval(1000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> loop(producer), "numbered-" + i);
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        producer.shutdown();
        answer.put("acknowledged", new ArrayList<>(acknowledged));
        answer.put("failed", failed.get());
        answer.put("last_error", lastError.get());
        answer.put("next", next.get());
    }

    private void loop(DefaultMQProducer producer) {
        while (!Files.exists(until)) {
            long number = next.getAndIncrement();
            byte[] body = String.format("java-%012d-%s", number, FILLER).getBytes(StandardCharsets.UTF_8);
            try {
                SendResult result = producer.send(new Message(topic, body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(number);
                    continue;
                }
                lastError.set(result.getSendStatus().toString());
            } catch (Exception e) {
                lastError.set(e.toString());
            }
            failed.incrementAndGet();
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException e) {
                return;
            }
        }
    }
}
