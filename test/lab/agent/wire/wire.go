// Package wire defines the protocol between a lab and its guest's agent: one stream for each command, with frames in
// both directions.
//
// The caller sends a Request first, then Stdin frames (an empty one ends it), Signal, Kill and Resize. The agent
// answers Started, then Stdout and Stderr, and finally Exit; or only Failed. If a process between the two loses the
// agent, it ends the stream with Lost. If the caller closes the stream earlier, the command's process group is killed.
//
// Each Stdin frame is answered by Taken when the command has read it. At most InputWindow frames may be unanswered, so
// that a command that does not read does not block signals.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Ready is the first line that an agent sends when its guest is up; the frames of the multiplexed streams follow it.
const Ready = "ironlb-guest ready\n"

// ConfigPath is the path of the guest's Config in the initial file system.
const ConfigPath = "/guest.json"

// Kind is the type of a frame.
type Kind byte

// The kinds of frames, with their payload.
const (
	KindRequest Kind = iota + 1 // Request
	KindStdin                   // bytes; none: end of file
	KindSignal                  // int
	KindResize                  // Size
	KindStarted                 // int, the process number
	KindStdout                  // bytes
	KindStderr                  // bytes
	KindExit                    // Exit
	KindFailed                  // string, the reason
	KindTaken                   // nothing
	KindKill                    // nothing; the process group
	KindLost                    // string, what happened to the guest
)

// InputWindow is the maximum number of Stdin frames without an answer.
const InputWindow = 16

// Request requests one command.
type Request struct {
	Argv []string
	Env  []string
	Dir  string
	TTY  bool
	Size Size
}

// Size is the size of a terminal.
type Size struct{ Rows, Cols uint16 }

// Exit is the result of a command.
type Exit struct {
	Status uint32 // as returned by wait4(2)
	Err    string // set if the output is incomplete
}

// Config configures the guest's first process.
type Config struct {
	Modules []string // files in the initial file system, in order
	Kernel  string   // release
	// ModulesDir is the host's folder with that kernel's modules.
	ModulesDir string
	// Shares are host folders, writable and without a cache.
	Shares []string
	// Programs are host folders, read-only and cached without revalidation.
	Programs []string
	// Links are the guest's network cards.
	Links []Link
}

// Link is a network card, identified by its hardware address.
type Link struct {
	MAC, Name string
	Addresses []string // to assign, in CIDR form
}

// ShareTag is the 9p tag of the share with index i.
func ShareTag(i int) string { return fmt.Sprintf("share%d", i) }

// RootTag is the 9p tag of the host's root.
const RootTag = "root"

const (
	headerLen = 5
	// maxFrame limits a reader's allocation; the longest frame is a Request with a large environment.
	maxFrame = 4 << 20
	maxData  = 32 << 10
)

// Writer sends frames. It is safe for concurrent use.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Send sends one frame with an unmodified payload.
func (w *Writer) Send(k Kind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("send frame of %d bytes: at most %d are allowed", len(payload), maxFrame)
	}
	b := make([]byte, headerLen, headerLen+len(payload))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(append(b, payload...))
	return err
}

// SendJSON sends one frame with v as JSON.
func (w *Writer) SendJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(k, b)
}

// Data returns a writer that sends frames of kind k. An empty write sends nothing, because an empty frame ends the
// input.
func (w *Writer) Data(k Kind) io.Writer { return data{w, k} }

type data struct {
	w *Writer
	k Kind
}

func (d data) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+maxData)]
		if err := d.w.Send(d.k, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Read reads one frame. The end of r before a frame is io.EOF.
func Read(r io.Reader) (Kind, []byte, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("read frame: %d bytes announced, at most %d are allowed", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, fmt.Errorf("read frame of %d bytes: %w", n, err)
	}
	return Kind(h[0]), b, nil
}
