import com.alibaba.fastjson2.JSONObject;

import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

import java.util.Random;

/** Looks random ones of the keys key-0 ... key-(N-1) up, one after the other. */
final class Finding {
    /** The client's code for: all brokers answered, none had it. */
    private static final int NO_MESSAGE = 208;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int keys;
    private final int lookups;
    private final long seed;

    Finding(DefaultMQProducer producer, JSONObject command) {
        this.producer = producer;
        topic = command.getString("topic");
        keys = command.getIntValue("keys");
        lookups = command.getIntValue("lookups");
        seed = command.getLongValue("seed");
    }

    void run(JSONObject answer) throws Exception {
        Random draw = new Random(seed);
        Samples samples = new Samples();
        long missing = 0;
        long began = System.nanoTime();
        for (int i = 0; i < lookups; i++) {
            String key = "key-" + draw.nextInt(keys);
            long start = System.nanoTime();
            try {
                producer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
            } catch (MQClientException e) {
                if (e.getResponseCode() != NO_MESSAGE) {
                    throw e;
                }
                missing++;
            }
            samples.add(System.nanoTime() - start);
        }
        answer.put("messages", lookups);
        answer.put("failed", missing);
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
        samples.report(answer);
    }
}
