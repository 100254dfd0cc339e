// A known call graph for the readers of Go's function table.
package main

import "fmt"

type pair[T any] struct{ first, second T }

//go:noinline
func leaf(n int) int {
	total := n
	for i := 0; i < 100000; i++ {
		total = total*31 + i
	}
	return total
}

func inlined(n int) int { return leaf(n) + 1 }

//go:noinline
func deep(n int) int {
	if n == 0 {
		return inlined(n)
	}
	return deep(n-1) + 1
}

//go:noinline
func add[T int | float64](p *pair[T]) T { return p.first + p.second }

func main() {
	fmt.Println("ready")
	p := &pair[int]{1, 2}
	for p.first = 0; add(p) != -1; p.first++ {
		p.second = deep(2)
	}
}
