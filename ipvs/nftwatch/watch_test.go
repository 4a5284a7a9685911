package nftwatch_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

type watched struct {
	*netspace.Space
	*nftwatch.Watch
}

func open(t *testing.T) watched {
	t.Helper()
	w := watched{Space: netspace.New(t)}
	w.Must(t, func() (err error) {
		w.Watch, err = nftwatch.Open("ours")
		return err
	})
	t.Cleanup(w.Close)
	return w
}

func nft(input string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// elements returns a transaction that creates a table with a set of n elements.
func elements(table string, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table %s\nadd set %[1]s s { type ipv4_addr . inet_service; }\n", table)
	for i := range n {
		fmt.Fprintf(&b, "add element %s s { 192.0.2.%d . %d }\n", table, i%256, 1+i/256)
	}
	return b.String()
}

// TestCount: transactions are counted by family, not by message, and only those of tables of this name.
func TestCount(t *testing.T) {
	w := open(t)
	for _, c := range []struct {
		input string
		want  nftwatch.Counts
	}{
		{elements("ip ours", 3), nftwatch.Counts{1, 0}},
		{"add table ip6 ours", nftwatch.Counts{0, 1}},
		{"add chain ip ours c\nadd chain ip6 ours c\nadd chain ip ours d", nftwatch.Counts{1, 1}},
		{elements("ip theirs", 3) + "add table inet ours\n", nftwatch.Counts{}},
		{"flush ruleset", nftwatch.Counts{1, 1}},
	} {
		w.Must(t, func() error { return nft(c.input) })
		if got, err := w.Count(); err != nil || got != c.want {
			t.Errorf("after %q: %v, %v; want %v", c.input, got, err, c.want)
		}
		if got, err := w.Count(); err != nil || got != (nftwatch.Counts{}) {
			t.Errorf("again: %v, %v", got, err)
		}
	}
}

// TestGreatTransaction: a transaction of many elements does not overflow the buffer.
func TestGreatTransaction(t *testing.T) {
	w := open(t)
	const many = 100_000
	w.Must(t, func() error { return nft(elements("ip ours", many)) })
	if got, err := w.Count(); err != nil || got != (nftwatch.Counts{1, 0}) {
		t.Errorf("%v, %v; want one", got, err)
	}
}

// FuzzTableOf: no message crashes the parser.
func FuzzTableOf(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 11, 0, 1, 0, 'i', 'r', 'o', 'n', 'l', 'b', 0, 0})
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) { nftwatch.TableOf(data) })
}
