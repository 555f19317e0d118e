import java.util.concurrent.TimeUnit;

/** What a scenario prints, name=value, and how long it waits for something to come true. */
final class Facts {
    private static final long PATIENCE_S = 60;
    private static final long LOOK_MS = 50;

    interface Condition {
        boolean holds() throws Exception;
    }

    private Facts() {
    }

    static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    /** Waits until the condition holds. Returns false if it does not within PATIENCE_S. */
    static boolean until(Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                return false;
            }
            Thread.sleep(LOOK_MS);
        }
        return true;
    }

    /** For what a listener has just taken: its offset is the client's a moment later. Then, nothing more comes. */
    static void settle() throws InterruptedException {
        Thread.sleep(1500);
    }
}
