import java.util.function.BiConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * A producer that sends to queue 0 again and again, and a consumer of all queues, until they are killed. A line for each send, each
 * message, and each answer to a pull: "sent", "got", "pull QUEUE CODE". A refused send or pull is "refused WHO TEXT".
 * Arguments: name server, topic, group.
 */
public final class Watched {
    private static final int PAUSE_MS = 100;
    // RequestCode and ResponseCode are in other packages in 4.9.8.
    private static final int PULL_MESSAGE = 11;
    private static final int NO_PERMISSION = 16;

    private Watched() {
    }

    /** Signs, and shows what a client keeps to itself: the answers to its pulls. */
    private record Hook(RPCHook signs, BiConsumer<RemotingCommand, RemotingCommand> shown) implements RPCHook {
        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
            signs.doBeforeRequest(address, request);
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            if (response != null && request.getCode() == PULL_MESSAGE) {
                shown.accept(request, response);
            }
        }
    }

    private static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.isEmpty() ? "" : " ").append(word);
        }
        System.out.println(line);
    }

    private static void answered(RemotingCommand request, RemotingCommand response) {
        if (request.getExtFields().get("topic").startsWith("%")) {
            return;
        }
        String queue = request.getExtFields().get("queueId");
        if (response.getCode() == NO_PERMISSION) {
            say("refused", "queue" + queue, response.getRemark());
        } else {
            say("pull", "queue" + queue, response.getCode());
        }
    }

    private static void consume(String address, String topic, String group) throws MQClientException {
        RPCHook hook = new Hook(Login.hook(), Watched::answered);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> say("got"));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + topic, Login.hook());
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName("producer");
        producer.setSendMsgTimeout(30_000);
        producer.start();
        consume(arguments[0], topic, arguments[2]);
        while (true) {
            try {
                producer.send(new Message(topic, "body".getBytes()), (queues, one, key) -> queues.get((Integer) key), 0);
                say("sent");
            } catch (Exception error) {
                say("refused", "producer", error.getMessage().lines().findFirst().orElse(""));
            }
            Thread.sleep(PAUSE_MS);
        }
    }
}
