import io.openmessaging.Future;
import io.openmessaging.KeyValue;
import io.openmessaging.Message;
import io.openmessaging.MessagingAccessPoint;
import io.openmessaging.OMS;
import io.openmessaging.OMSBuiltinKeys;
import io.openmessaging.consumer.PullConsumer;
import io.openmessaging.consumer.PushConsumer;
import io.openmessaging.producer.Producer;
import io.openmessaging.producer.SendResult;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;

/**
 * RocketMQ behind the interfaces of OpenMessaging: a producer, a push and a pull consumer.
 * Prints what is the same at any broker. Arguments: name server, topic.
 */
public final class OpenMessagingScenario {
    private static final int COUNT = 20;
    private static final long WAIT_MS = 60_000;
    private static final long SETTLE_MS = 2_000;
    private static final int REQUEST_MS = 30_000;

    private static void fact(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    private static void send(Producer producer, String topic) throws Exception {
        Set<String> ids = new TreeSet<>();
        for (int number = 0; number < COUNT; number++) {
            SendResult result = producer.send(producer.createBytesMessage(topic, ("sync-" + number).getBytes()));
            ids.add(result.messageId());
            producer.sendOneway(producer.createBytesMessage(topic, ("oneway-" + number).getBytes()));
        }
        fact("sync", ids.size());
        int answered = 0;
        for (int number = 0; number < COUNT; number++) {
            Future<SendResult> coming = producer.sendAsync(producer.createBytesMessage(topic, ("async-" + number).getBytes()));
            answered += coming.get(WAIT_MS) == null ? 0 : 1;
        }
        fact("async", answered);
    }

    private static Set<String> pushed(MessagingAccessPoint place, String topic) throws Exception {
        Set<String> bodies = new ConcurrentSkipListSet<>();
        PushConsumer consumer = place.createPushConsumer(OMS.newKeyValue().put(OMSBuiltinKeys.CONSUMER_ID, "push-" + topic));
        consumer.attachQueue(topic, (message, context) -> {
            bodies.add(new String(message.getBody(byte[].class)));
            context.ack();
        });
        consumer.startup();
        long end = System.currentTimeMillis() + WAIT_MS;
        while (bodies.size() < 3 * COUNT && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Thread.sleep(SETTLE_MS);
        consumer.shutdown();
        return bodies;
    }

    private static Map<String, Integer> pulled(MessagingAccessPoint place, String topic) {
        Map<String, Integer> bodies = new ConcurrentHashMap<>();
        PullConsumer consumer = place.createPullConsumer(OMS.newKeyValue().put(OMSBuiltinKeys.CONSUMER_ID, "pull-" + topic));
        consumer.attachQueue(topic);
        consumer.startup();
        long end = System.currentTimeMillis() + WAIT_MS;
        while (bodies.size() < 3 * COUNT && System.currentTimeMillis() < end) {
            Message message = consumer.receive(OMS.newKeyValue().put(Message.BuiltinKeys.TIMEOUT, 1_000));
            if (message != null) {
                bodies.merge(new String(message.getBody(byte[].class)), 1, Integer::sum);
                consumer.ack(message.sysHeaders().getString(Message.BuiltinKeys.MESSAGE_ID));
            }
        }
        consumer.shutdown();
        return bodies;
    }

    private static void run(String nameServer, String topic) throws Exception {
        KeyValue settings = OMS.newKeyValue().put(OMSBuiltinKeys.OPERATION_TIMEOUT, REQUEST_MS);
        MessagingAccessPoint place = OMS.getMessagingAccessPoint("oms:rocketmq://" + nameServer + "/default:default", settings);
        place.startup();
        Producer producer = place.createProducer();
        producer.startup();
        send(producer, topic);
        Set<String> pushed = pushed(place, topic);
        fact("pushed", pushed.size());
        fact("pulled the same", pulled(place, topic).keySet().equals(pushed));
        producer.shutdown();
        place.shutdown();
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
