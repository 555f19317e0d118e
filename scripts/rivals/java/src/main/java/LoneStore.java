import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

/** RocketMQ's store in this process, without a broker: puts from one thread, and dispatch of a log. */
final class LoneStore {
    private static final int QUEUES = 8;

    private final InetSocketAddress host = new InetSocketAddress(InetAddress.getLoopbackAddress(), 10911);

    /** Puts for some seconds; then waits until all is dispatched. */
    void put(JSONObject command, JSONObject answer) throws Exception {
        DefaultMessageStore store = create(command.getString("root"));
        start(store);
        int batch = command.getIntValue("batch", 1);
        byte[] body = new byte[command.getIntValue("body", 128)];
        java.util.Arrays.fill(body, (byte) 'b');
        long stored = 0;
        long began = System.nanoTime();
        long endAt = began + command.getLongValue("seconds", 3600) * 1_000_000_000L;
        while (System.nanoTime() < endAt) {
            PutMessageResult result = batch == 1
                ? store.putMessage(single(body, stored))
                : store.putMessages(batch(body, stored, batch));
            if (!result.isOk()) {
                throw new IllegalStateException("put: " + result.getPutMessageStatus());
            }
            stored += batch;
        }
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        answer.put("messages", stored);
        awaitDispatch(store);
        answer.put("dispatched_s", (System.nanoTime() - began) / 1e9);
        stop(store);
    }

    /** Seconds until queues and index hold the whole log. Recovery, within load, dispatches the last files. */
    void dispatch(JSONObject command, JSONObject answer) throws Exception {
        DefaultMessageStore store = create(command.getString("root"));
        long began = System.nanoTime();
        start(store);
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        stop(store);
    }

    private DefaultMessageStore create(String root) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setHaListenPort(0);
        config.setMaxMessageSize(16 << 20);
        return new DefaultMessageStore(config, new BrokerStatsManager("rival", false),
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { },
            new BrokerConfig(), new ConcurrentHashMap<String, TopicConfig>());
    }

    private static void start(DefaultMessageStore store) throws Exception {
        if (!store.load()) {
            throw new IllegalStateException("load returned false");
        }
        store.start();
        awaitDispatch(store);
    }

    private static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** RocketMQ's stop sleeps some seconds unconditionally after its schedulers ended: that alone is cut short. */
    private static void stop(DefaultMessageStore store) {
        Thread stopping = Thread.currentThread();
        Thread helper = new Thread(() -> {
            while (!store.isShutdown() || !sleepsInShutdown(stopping)) {
                java.util.concurrent.locks.LockSupport.parkNanos(5_000_000);
            }
            stopping.interrupt();
        }, "stop");
        helper.setDaemon(true);
        helper.start();
        store.shutdown();
        Thread.interrupted();
    }

    private static boolean sleepsInShutdown(Thread thread) {
        StackTraceElement[] stack = thread.getStackTrace();
        return stack.length > 1
            && stack[0].getClassName().equals("java.lang.Thread") && stack[0].getMethodName().equals("sleep")
            && stack[1].getClassName().equals(DefaultMessageStore.class.getName())
            && stack[1].getMethodName().equals("shutdown");
    }

    private MessageExtBrokerInner single(byte[] body, long number) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        inner.setTopic("lone");
        inner.setQueueId((int) (number % QUEUES));
        inner.setBody(body);
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(host);
        inner.setStoreHost(host);
        MessageClientIDSetter.setUniqID(inner);
        inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
        return inner;
    }

    private MessageExtBatch batch(byte[] body, long first, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            Message message = new Message("lone", body);
            MessageClientIDSetter.setUniqID(message);
            messages.add(message);
        }
        MessageExtBatch made = new MessageExtBatch();
        made.setTopic("lone");
        made.setQueueId((int) (first / count % QUEUES));
        made.setBornTimestamp(System.currentTimeMillis());
        made.setBornHost(host);
        made.setStoreHost(host);
        made.setBody(MessageDecoder.encodeMessages(messages));
        return made;
    }
}
