import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Sends at full speed for some seconds, or until a number of messages is stored. `batch` > 1: threads that wait for
 * each batch; `in_flight` > 0: asynchronous sends, one request a message; else threads that wait for each message.
 */
final class Sending {
    private static final long STRAGGLERS_MS = 30_000;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int topics;
    private final int threads;
    private final int batch;
    private final int inFlight;
    private final long limit;
    private final boolean keyed;
    private final byte[] body;
    private final long seconds;
    private final AtomicLong taken = new AtomicLong();
    private final AtomicLong stored = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicReference<String> firstError = new AtomicReference<>();
    private final Samples waits = new Samples();
    private volatile long endAt;

    Sending(DefaultMQProducer producer, JSONObject command) {
        this.producer = producer;
        topic = command.getString("topic");
        topics = command.getIntValue("topics", 1);
        threads = command.getIntValue("threads", 1);
        batch = command.getIntValue("batch", 1);
        inFlight = command.getIntValue("in_flight", 0);
        limit = command.getLongValue("messages", Long.MAX_VALUE);
        keyed = command.getBooleanValue("keyed");
        seconds = command.getLongValue("seconds", 3600);
        body = new byte[command.getIntValue("body", 128)];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
    }

    void run(JSONObject answer) throws InterruptedException {
        Semaphore room = new Semaphore(Math.max(1, inFlight));
        long began = System.nanoTime();
        endAt = began + seconds * 1_000_000_000L;
        Rival.parallel(threads, number -> loop(number, room));
        if (inFlight > 0) {
            room.tryAcquire(inFlight, STRAGGLERS_MS, java.util.concurrent.TimeUnit.MILLISECONDS);
        }
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        answer.put("messages", stored.get());
        answer.put("failed", failed.get());
        answer.put("first_error", firstError.get());
        if (inFlight == 0) {
            waits.report(answer);
        }
    }

    private void loop(int thread, Semaphore room) {
        Samples own = new Samples();
        int turn = thread;
        while (System.nanoTime() < endAt) {
            long first = taken.getAndAdd(batch);
            if (first >= limit) {
                break;
            }
            String to = topics == 1 ? topic : topic + (turn++ % topics);
            long start = System.nanoTime();
            try {
                if (inFlight > 0) {
                    room.acquire();
                    producer.send(message(to, first), new Outcome(room));
                    continue;
                }
                SendResult result = batch > 1 ? producer.send(messages(to, first)) : producer.send(message(to, first));
                note(result);
            } catch (Exception e) {
                if (inFlight > 0) {
                    room.release();
                }
                fail(e, batch);
            }
            own.add(System.nanoTime() - start);
        }
        synchronized (waits) {
            waits.addAll(own);
        }
    }

    private void note(SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            stored.addAndGet(batch);
        } else {
            firstError.compareAndSet(null, result.getSendStatus().name());
            failed.addAndGet(batch);
        }
    }

    private void fail(Throwable e, int messages) {
        firstError.compareAndSet(null, e.toString());
        failed.addAndGet(messages);
    }

    private List<Message> messages(String to, long first) {
        List<Message> made = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            made.add(message(to, first + i));
        }
        return made;
    }

    private Message message(String to, long number) {
        Message message = new Message(to, body);
        if (keyed) {
            message.setKeys("key-" + number);
        }
        return message;
    }

    /** Counts one asynchronous send. */
    private final class Outcome implements SendCallback {
        private final Semaphore room;

        Outcome(Semaphore room) {
            this.room = room;
        }

        @Override
        public void onSuccess(SendResult result) {
            note(result);
            room.release();
        }

        @Override
        public void onException(Throwable e) {
            fail(e, 1);
            room.release();
        }
    }
}
