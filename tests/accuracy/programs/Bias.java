/* Two loops and the processor time that each of them really used: one without a safepoint in its loop, one with.
 *
 * It answers each line of its input with "COUNTED_NS POLLED_NS COUNTED_SEEN POLLED_SEEN". SEEN is how often
 * Thread.getStackTrace(), which waits for a safepoint, has found the thread in each of them.
 */
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Scanner;

public class Bias {
    static final int[] DATA = new int[100_000];
    static volatile long inCounted, inPolled, sum;

    /** The compiler removes the poll from a loop that counts an int. */
    static int counted(int n) {
        int found = 0;
        for (int i = 0; i < DATA.length; i++) found += DATA[i] * n ^ i;
        return found;
    }

    static long polled(long n) {
        long found = n;
        for (long i = 0; i < 30_000; i++) found = found * 31 + (found >>> 7) + i;
        return found;
    }

    public static void main(String[] arguments) {
        Thread worker = new Thread(Bias::work);
        worker.setDaemon(true);
        worker.start();
        int[] seen = new int[2];
        Thread sampler = new Thread(() -> sample(worker, seen));
        sampler.setDaemon(true);
        sampler.start();
        System.out.println("ready");
        for (Scanner in = new Scanner(System.in); in.hasNextLine(); in.nextLine()) {
            System.out.println(inCounted + " " + inPolled + " " + seen[0] + " " + seen[1]);
        }
    }

    static void work() {
        ThreadMXBean times = ManagementFactory.getThreadMXBean();
        while (true) {
            long begin = times.getCurrentThreadCpuTime();
            for (int i = 0; i < 100; i++) sum += counted(i);
            long middle = times.getCurrentThreadCpuTime();
            for (int i = 0; i < 100; i++) sum += polled(i);
            inCounted += middle - begin;
            inPolled += times.getCurrentThreadCpuTime() - middle;
        }
    }

    static void sample(Thread worker, int[] seen) {
        while (true) {
            for (StackTraceElement frame : worker.getStackTrace()) {
                if (frame.getMethodName().equals("counted")) seen[0]++;
                if (frame.getMethodName().equals("polled")) seen[1]++;
            }
            try {
                Thread.sleep(2);
            } catch (InterruptedException ended) {
                return;
            }
        }
    }
}
