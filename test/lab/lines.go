package lab

import (
	"bytes"
	"sync"
)

// lines is a writer that keeps the complete lines of a program's output.
type lines struct {
	first chan struct{} // closed at the first line

	mu   sync.Mutex
	done [][]byte
	part []byte
}

func newLines() *lines { return &lines{first: make(chan struct{})} }

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if len(l.done) == 0 {
			close(l.first)
		}
		l.done, l.part = append(l.done, line), bytes.Clone(rest)
	}
}

// All returns the lines so far.
func (l *lines) All() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[:len(l.done):len(l.done)]
}

// Drop discards them.
func (l *lines) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = nil
}
