import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** What `mqadmin queryMsgTraceById` prints, without times and addresses. */
final class Traces {
    /** The heads of two tables, a send and a consumption. */
    static final int LINES = 4;

    private Traces() {
    }

    static List<String> of(String nameServer, String id) {
        PrintStream before = System.out;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        System.setOut(new PrintStream(said, true));
        try {
            MQAdminStartup.main0(new String[] {"queryMsgTraceById", "-n", nameServer, "-i", id}, null);
        } finally {
            System.setOut(before);
        }
        TreeSet<String> lines = new TreeSet<>();
        for (String line : said.toString().split("\n")) {
            String masked = line.strip().replaceAll("[0-9]+(\\.[0-9]+){3}(:[0-9]+)?", "ADDRESS")
                .replaceAll("[0-9]{4}-[0-9-]+ [0-9:,]+", "TIME").replaceAll("[0-9]+ms", "Nms").replaceAll("\\s+", " ");
            if (!masked.isEmpty()) {
                lines.add(masked);
            }
        }
        return List.copyOf(lines);
    }
}
