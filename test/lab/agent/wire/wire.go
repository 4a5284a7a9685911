// Package wire is what a lab and its guest's agent say to each other: one
// stream for each command, on which both sides send frames.
//
// The caller sends a Request first, then Stdin frames (an empty one ends it),
// Signal, Kill and Resize. The agent answers Started, then Stdout and Stderr, and at
// last Exit; or Failed and nothing else. A process between the two that loses
// the agent ends the stream with Lost. A caller that closes the stream
// earlier has the command's process group killed.
//
// Each Stdin frame is answered by Taken when the command has read it. At most
// InputWindow may wait for that, so that a command that does not read keeps no
// signal from arriving.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Ready is the first line an agent sends when its guest is up; the frames of
// the multiplexed streams follow it.
const Ready = "ironlb-guest ready\n"

// ConfigPath is where the initial file system carries the guest's Config.
const ConfigPath = "/guest.json"

// Kind tells what a frame carries.
type Kind byte

// The kinds of frames; the comment says what the payload is.
const (
	KindRequest Kind = iota + 1 // Request
	KindStdin                   // bytes; none: end of file
	KindSignal                  // int
	KindResize                  // Size
	KindStarted                 // int, the process number
	KindStdout                  // bytes
	KindStderr                  // bytes
	KindExit                    // Exit
	KindFailed                  // string, why it was not started
	KindTaken                   // nothing
	KindKill                    // nothing; the whole process group
	KindLost                    // string, what happened to the guest
)

// InputWindow is how many Stdin frames may be without their Taken.
const InputWindow = 16

// Request asks for one command.
type Request struct {
	Argv []string
	Env  []string
	Dir  string
	TTY  bool
	Size Size
}

// Size is a terminal's.
type Size struct{ Rows, Cols uint16 }

// Exit is how a command ended.
type Exit struct {
	Status uint32 // as wait4(2) has it
	Err    string // set when its output could not all be brought back
}

// Config tells the guest's first process what to set up.
type Config struct {
	Modules []string // files in the initial file system, in order
	Kernel  string   // release
	// ModulesDir is the host's folder with that kernel's modules.
	ModulesDir string
	// Shares are host folders seen as they are now, and writable.
	Shares []string
	// Links are the guest's network cards.
	Links []Link
}

// Link is a network card, found by its hardware address.
type Link struct {
	MAC, Name string
	Addresses []string // that it is given, in CIDR form
}

// ShareTag is the 9p tag of the share with index i.
func ShareTag(i int) string { return fmt.Sprintf("share%d", i) }

// RootTag is the 9p tag of the host's root.
const RootTag = "root"

const (
	headerLen = 5
	// maxFrame bounds what a reader allocates; a Request with a large
	// environment is the longest frame.
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

// Send sends one frame with payload as it is.
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

// Data returns a writer whose bytes go out in frames of kind k. An empty
// write sends nothing, so that it cannot be taken for the end of the input.
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
