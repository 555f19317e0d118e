import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;

/**
 * RocketMQ's side of scripts/rivals/compare_rocketmq.py: one process that stays warm and is told over its standard input what
 * to do, a JSON object a line, and answers each with one line. README.md beside the pom lists the commands.
 */
public final class Rival {
    private Rival() {
    }

    public static void main(String[] args) throws Exception {
        // Whatever a library prints must not come between the answers.
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Broker broker = args.length > 0 ? new Broker(args[0]) : null;
        LoneStore store = new LoneStore();
        answers.println("{\"ready\":true}");
        answers.flush();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer = new JSONObject();
            try {
                JSONObject command = JSON.parseObject(line);
                run(broker, store, command, answer);
            } catch (Throwable e) {
                answer.put("error", describe(e));
            }
            answers.println(answer.toString());
            answers.flush();
        }
        // Clients and stores leave threads behind.
        System.exit(0);
    }

    private static void run(Broker broker, LoneStore store, JSONObject command, JSONObject answer) throws Exception {
        String what = command.getString("do");
        switch (what) {
            case "topic" -> broker.makeTopic(command);
            case "route" -> broker.awaitRoute(command.getString("topic"));
            case "behind" -> answer.put("bytes", broker.behindBytes(command));
            case "send" -> new Sending(broker.producer(command), command).run(answer);
            case "drain" -> Reading.drain(broker, command, answer);
            case "push" -> Reading.push(broker, command, answer);
            case "end_to_end" -> new EndToEnd(broker, command).run(answer);
            case "find" -> Reading.find(broker.producer(command), command, answer);
            case "first_send" -> broker.firstSend(command, answer);
            case "store_put" -> store.put(command, answer);
            case "store_dispatch" -> store.dispatch(command, answer);
            default -> throw new IllegalArgumentException("no such command: " + what);
        }
    }

    /** Runs as many threads, each with its number, to their end. */
    static void parallel(int count, IntConsumer work) throws InterruptedException {
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            running.add(new Thread(() -> work.accept(number), "load-" + i));
            running.get(i).start();
        }
        for (Thread thread : running) {
            thread.join();
        }
    }

    private static String describe(Throwable e) {
        StringBuilder text = new StringBuilder(e.toString());
        StackTraceElement[] stack = e.getStackTrace();
        for (int i = 0; i < Math.min(3, stack.length); i++) {
            text.append(" at ").append(stack[i]);
        }
        return text.toString();
    }
}
