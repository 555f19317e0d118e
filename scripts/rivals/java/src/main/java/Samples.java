import com.alibaba.fastjson2.JSONObject;

import java.util.Arrays;

/** Durations in nanoseconds, all of them kept, for exact percentiles. Not for many threads at once. */
final class Samples {
    private long[] values = new long[1 << 16];
    private int count;

    void add(long nanoseconds) {
        if (count == values.length) {
            values = Arrays.copyOf(values, count * 2);
        }
        values[count++] = nanoseconds;
    }

    void addAll(Samples other) {
        for (int i = 0; i < other.count; i++) {
            add(other.values[i]);
        }
    }

    int count() {
        return count;
    }

    /** Percentiles in microseconds, by nearest rank. */
    void report(JSONObject answer) {
        long[] sorted = Arrays.copyOf(values, count);
        Arrays.sort(sorted);
        answer.put("p50_us", at(sorted, 0.50));
        answer.put("p90_us", at(sorted, 0.90));
        answer.put("p99_us", at(sorted, 0.99));
        answer.put("p999_us", at(sorted, 0.999));
        answer.put("max_us", at(sorted, 1.0));
    }

    private static double at(long[] sorted, double share) {
        if (sorted.length == 0) {
            return -1;
        }
        int rank = (int) Math.ceil(share * sorted.length) - 1;
        return sorted[Math.max(0, rank)] / 1000.0;
    }
}
