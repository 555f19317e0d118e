import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs classes of RocketMQ's tests by JUnitCore, one after the other. Its standard input names them, a JSON object a line:
 * {"class":NAME,"limit_s":SECONDS}. It answers each with one line, {"class":NAME,"in_time":BOOL,"tests":[{"test","outcome",
 * "seconds","why"}…]}; outcomes are passed, failed, ignored, and unfinished for what the limit cut off. After an answer that
 * is not in time it ends: the threads of the class may still run.
 */
public final class RunClasses {
    private static final int WHY_CHARS_MAX = 2000;

    private RunClasses() {
    }

    public static void main(String[] args) throws Exception {
        // Tests print; that must not come between the answers.
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            JSONObject answer = run(asked.getString("class"), asked.getIntValue("limit_s"));
            answers.println(answer.toString());
            answers.flush();
            if (!answer.getBooleanValue("in_time")) {
                break;
            }
        }
        // Clients leave threads behind.
        Runtime.getRuntime().halt(0);
    }

    private static JSONObject run(String name, int limitS) throws Exception {
        JSONObject answer = new JSONObject();
        answer.put("class", name);
        Request request = Request.aClass(Class.forName(name));
        Outcomes outcomes = new Outcomes(request.getRunner().getDescription());
        JUnitCore core = new JUnitCore();
        core.addListener(outcomes);
        Thread thread = new Thread(() -> core.run(request), "tests");
        thread.setDaemon(true);
        thread.start();
        thread.join(limitS * 1000L);
        answer.put("in_time", !thread.isAlive());
        answer.put("tests", outcomes.rows());
        return answer;
    }

    /** The outcome of each test of a class; all are unfinished at first. */
    private static final class Outcomes extends RunListener {
        private final Map<String, JSONObject> rows = new LinkedHashMap<>();
        private long beganAt;

        Outcomes(Description all) {
            for (Description one : all.getChildren()) {
                note(one, "unfinished", "");
            }
        }

        @Override
        public synchronized void testStarted(Description one) {
            beganAt = System.nanoTime();
        }

        @Override
        public synchronized void testFailure(Failure failure) {
            StringWriter trace = new StringWriter();
            failure.getException().printStackTrace(new PrintWriter(trace));
            String why = trace.toString();
            note(failure.getDescription(), "failed", why.substring(0, Math.min(WHY_CHARS_MAX, why.length())));
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            testFailure(failure);
        }

        @Override
        public synchronized void testIgnored(Description one) {
            note(one, "ignored", "");
        }

        @Override
        public synchronized void testFinished(Description one) {
            JSONObject row = rows.get(nameOf(one));
            if (row.getString("outcome").equals("unfinished")) {
                row.put("outcome", "passed");
            }
            row.put("seconds", Math.round((System.nanoTime() - beganAt) / 1e8) / 10.0);
        }

        private void note(Description one, String outcome, String why) {
            JSONObject row = new JSONObject();
            row.put("test", nameOf(one));
            row.put("outcome", outcome);
            row.put("seconds", 0.0);
            row.put("why", why);
            rows.put(nameOf(one), row);
        }

        synchronized List<JSONObject> rows() {
            List<JSONObject> copies = new ArrayList<>();
            rows.values().forEach(row -> copies.add(new JSONObject(row)));
            return copies;
        }

        // A class that fails as a whole, in @BeforeClass, is described without a method.
        private static String nameOf(Description one) {
            return one.getMethodName() == null ? one.getDisplayName() : one.getMethodName();
        }
    }
}
