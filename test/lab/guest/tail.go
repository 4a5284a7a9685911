package guest

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	tailBytes = 16 << 10
	tailLines = 80 // a panic's first line comes before two traces
)

// tail keeps the end of all writes, and forwards them.
type tail struct {
	mu     sync.Mutex
	b      []byte
	to     io.Writer
	closed chan struct{} // closed when copy has read everything
}

func newTail(to io.Writer) *tail { return &tail{to: to, closed: make(chan struct{})} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = bytes.Clone(t.b[over:])
	}
	t.to.Write(p) // a failing reader must not affect the guest
	return len(p), nil
}

// copy reads r to its end and closes it.
func (t *tail) copy(r io.ReadCloser) {
	defer close(t.closed)
	defer r.Close()
	io.Copy(t, r)
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ReplaceAll(string(t.b), "\r", "")
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
