// Virtual threads whose call graph is known. Frames are frozen while a thread sleeps, and thawed one after the other.
// JDK 8 can compile it, JDK 21 and later can run it.
public class Virtual {
    static volatile long sink;

    static long spin(int rounds) {
        long sum = sink;
        for (int round = 0; round < rounds; round++) sum = sum * 31 + round;
        return sink = sum;
    }

    static void rest() {
        try {
            Thread.sleep(1);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    static long down(int depth) {
        if (depth == 0) {
            rest();
            return spin(20000);
        }
        return down(depth - 1) + spin(20000);
    }

    // Has arguments on the stack when it is frozen.
    static long wide(long a, long b, long c, long d, long e, long f, long g, long h, int depth) {
        if (depth == 0) {
            rest();
            return spin(20000);
        }
        return wide(b, c, d, e, f, g, h, a, depth - 1) + spin(20000) + a - h;
    }

    // Throws through frames that are frozen.
    static long thrower(int depth) {
        if (depth == 0) {
            rest();
            spin(20000);
            throw new IllegalArgumentException();
        }
        return thrower(depth - 1) + 1;
    }

    static long catcher() {
        try {
            return thrower(6);
        } catch (IllegalArgumentException thrown) {
            return spin(20000);
        }
    }

    static void work() {
        while (true) {
            down(10);
            wide(1, 2, 3, 4, 5, 6, 7, 8, 6);
            catcher();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Runnable work = Virtual::work;
        for (int number = 0; number < 8; number++)
            Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
        System.out.println("ready");
        Thread.sleep(Long.MAX_VALUE);
    }
}
