import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Requests and replies, as RocketMQ's users write them: producers that ask, and a consumer that replies through a
 * producer of its own. Prints what they saw: name=value. Arguments: name server, topic, requests; where users log in,
 * name and password of those who ask, then of who replies.
 */
public final class RequestClient {
    private static final long PATIENCE_MS = 20_000;
    private static String address;

    private static RPCHook login(String[] args, int first) {
        return args.length <= first ? null
            : new AclClientRPCHook(new SessionCredentials(args[first], args[first + 1]));
    }

    private static DefaultMQProducer producer(String group, String instance, RPCHook login) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group, login);
        made.setNamesrvAddr(address);
        made.setInstanceName(instance);
        made.start();
        return made;
    }

    private static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    public static void main(String[] args) throws Exception {
        address = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        RPCHook asks = login(args, 3);
        RPCHook replies = login(args, 5);
        DefaultMQProducer one = producer("askers", "one", asks);
        DefaultMQProducer two = producer("askers", "two", asks);
        DefaultMQProducer replier = producer("repliers", "replier", replies);
        AtomicInteger replied = new AtomicInteger();
        AtomicReference<String> failure = new AtomicReference<>("");
        AtomicReference<SendResult> last = new AtomicReference<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering-" + topic, replies);
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if ("silence".equals(message.getTags())) {
                    continue;
                }
                try {
                    byte[] body = ("re: " + new String(message.getBody())).getBytes();
                    last.set(replier.send(MessageUtil.createReplyMessage(message, body), 3_000));
                    replied.incrementAndGet();
                } catch (Exception error) {
                    failure.set(error.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        int right = 0;
        for (int n = 0; n < count; n++) {
            DefaultMQProducer asker = n % 2 == 0 ? one : two;
            Message reply = asker.request(new Message(topic, "say", ("ping " + n).getBytes()), PATIENCE_MS);
            right += new String(reply.getBody()).equals("re: ping " + n) ? 1 : 0;
        }
        print("right", right);

        CountDownLatch called = new CountDownLatch(1);
        AtomicReference<String> answer = new AtomicReference<>("");
        one.request(new Message(topic, "say", "async".getBytes()), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                answer.set(new String(message.getBody()));
                called.countDown();
            }

            @Override
            public void onException(Throwable error) {
                answer.set(error.toString());
                called.countDown();
            }
        }, PATIENCE_MS);
        called.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        print("called back", answer.get());

        byte[] large = new byte[64 * 1024];
        Message reply = two.request(new Message(topic, "say", large), PATIENCE_MS);
        print("large", reply.getBody().length == large.length + 4);

        boolean late = false;
        try {
            one.request(new Message(topic, "silence", "x".getBytes()), 1_500);
        } catch (RequestTimeoutException expected) {
            late = true;
        }
        print("no reply", late);

        two.shutdown();
        Thread.sleep(500);
        boolean refused = false;
        MessageExt lost = new MessageExt();
        lost.setTopic(topic);
        MessageAccessor.putProperty(lost, "CLUSTER", "DefaultCluster");
        MessageAccessor.putProperty(lost, "REPLY_TO_CLIENT", "nobody");
        MessageAccessor.putProperty(lost, "CORRELATION_ID", "c");
        MessageAccessor.putProperty(lost, "TTL", "3000");
        try {
            replier.setRetryTimesWhenSendFailed(0);
            replier.send(MessageUtil.createReplyMessage(lost, "for one who is gone".getBytes()), 3_000);
        } catch (Exception expected) {
            refused = true;
        }
        print("to nobody", refused);
        print("replied", replied.get());
        print("failures", failure.get());
        print("reply", last.get().getSendStatus());
        print("reply id", last.get().getMsgId());
        consumer.shutdown();
        replier.shutdown();
        one.shutdown();
    }
}
