package member

import (
	"fmt"
	"testing"

	"golang.org/x/net/bpf"
)

// The kernel's programs and Routine agree, and each broadcast is accepted by one socket of a pair.
func TestRoutinePrograms(t *testing.T) {
	accepts := func(t *testing.T, program []bpf.Instruction, data []byte) bool {
		t.Helper()
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		n, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	for _, name := range []string{"a", "node-1.example.net"} {
		c := testCore(t, name)
		plain := c.finish(c.appendHello(c.begin(), 0))
		routine := c.finish(c.appendHello(c.begin(), flagRoutine))
		other, at := beginField(c.begin(), fieldSlots) // with the flag's bit where hello has it
		other = c.finish(endField(append(other, 0xff, 0xff), at))
		for i, data := range [][]byte{plain, routine, other, plain[:20], nil} {
			t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) {
				want := i == 1
				if got := Routine(data); got != want {
					t.Errorf("Routine reports %t", got)
				}
				pass := bpf.RetConstant{Val: 1}
				if got := accepts(t, append(whileRoutine(0, 1), pass, bpf.RetConstant{Val: 0}), data); got != want {
					t.Errorf("the second socket gets it: %t", got)
				}
				datagram := append(make([]byte, payload), data...)
				first, second := &socket{paired: true}, &socket{deferred: true}
				if got := accepts(t, append(second.ownClass(), pass), datagram); got != want {
					t.Errorf("the second socket accepts a broadcast: %t", got)
				}
				if got := accepts(t, append(first.ownClass(), pass), datagram); got != (i == 0 || i == 2) {
					t.Errorf("the first socket accepts a broadcast: %t", got)
				}
			})
		}
	}
}
