// A known call graph for the reader of Java virtual machines: recursion, exceptions, lambdas, interfaces, stubs.
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.LongUnaryOperator;

public class Ladder {
    static volatile long sink;

    static long spin(long n) {
        long hash = n;
        for (int i = 0; i < 2000; i++) hash = hash * 31 + (hash >>> 7) + i;
        sink += hash;
        return hash;
    }

    static long one(long n) { return spin(n) + 1; }

    static long two(long n) { return one(n) + spin(n + 1); }

    /** Its arguments do not fit into registers. */
    static long three(long n, long a, double b, Object c, long d, long e, long f, long g, long h) {
        return two(n) + two(n + 1) + a + (long) b + d + e + f + g + h;
    }

    static long recurse(int depth, long n) {
        return depth == 0 ? three(n, 1, 2.0, "x", 3, 4, 5, 6, 7) : recurse(depth - 1, n + 1) + 1;
    }

    static long thrower(long n) {
        if (n % 2 == 0) throw new IllegalStateException("x" + n % 10);
        return spin(n);
    }

    static long catcher(long n) {
        try {
            return thrower(n);
        } catch (IllegalStateException found) {
            return found.getMessage().length() + spin(n);
        }
    }

    interface Shape { long area(long n); }

    static class A implements Shape { public long area(long n) { return spin(n); } }

    static class B implements Shape { public long area(long n) { return spin(n) + 1; } }

    static class C implements Shape { public long area(long n) { return spin(n) + 2; } }

    static final Shape[] SHAPES = {new A(), new B(), new C()};

    static long virtual(long n) {
        long sum = 0;
        for (Shape shape : SHAPES) sum += shape.area(n);
        return sum;
    }

    static long lambda(long n) {
        LongUnaryOperator function = value -> spin(value + n);
        return function.applyAsLong(n);
    }

    static long allocate(long n) {
        Map<Integer, String> map = new HashMap<>();
        for (int i = 0; i < 200; i++) map.put(i, "v" + i);
        long sum = 0;
        for (String value : map.values()) sum += value.hashCode();
        return sum;
    }

    static long sort(long n) {
        Integer[] numbers = new Integer[300];
        for (int i = 0; i < 300; i++) numbers[i] = (int) ((i * 7919 + n) % 1000);
        Arrays.sort(numbers, (p, q) -> p - q);
        return numbers[0];
    }

    static long copy(long n) {
        byte[] from = new byte[100000], to = new byte[100000];
        System.arraycopy(from, 0, to, 1, 99999);
        return to[5];
    }

    static long all(long n) {
        return recurse((int) (n % 20), n) + catcher(n) + virtual(n) + lambda(n) + allocate(n) + sort(n) + copy(n);
    }

    public static void main(String[] arguments) {
        System.out.println("ready");
        for (long n = 0, sum = 0; ; sum += all(n++)) sink = sum;
    }
}
