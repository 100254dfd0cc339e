/* A thread that is busy below 30 compiled frames, none of which is inlined: each call has four possible receivers.
 *
 * javac -d FOLDER Frames.java; java -cp FOLDER Frames SECONDS  ->  {"work": rounds}
 */
public class Frames {
    interface Rung { long down(int depth, long rounds); }

    static final Rung[] RUNGS = {new A(), new B(), new C(), new D()};

    static long next(int depth, long rounds) {
        return depth == 0 ? leaf(rounds) : RUNGS[depth % 4].down(depth - 1, rounds);
    }

    static class A implements Rung { public long down(int depth, long rounds) { return next(depth, rounds) + 1; } }

    static class B implements Rung { public long down(int depth, long rounds) { return next(depth, rounds) + 2; } }

    static class C implements Rung { public long down(int depth, long rounds) { return next(depth, rounds) + 3; } }

    static class D implements Rung { public long down(int depth, long rounds) { return next(depth, rounds) + 4; } }

    static long leaf(long rounds) {
        long x = 88172645463325252L;
        for (long round = 0; round < rounds; round++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        return x;
    }

    public static void main(String[] arguments) {
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9), work = 0, sum = 0;
        for (int warm = 0; warm < 30_000; warm++) sum += next(29, 100);
        for (; System.nanoTime() < end; work++) sum += next(29, 1_000_000);
        System.out.println("{\"work\": " + work + ", \"sum\": " + sum + "}");
    }
}
