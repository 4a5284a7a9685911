package wire

import (
	"bytes"
	"io"
	"testing"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	long := bytes.Repeat([]byte("x"), 2*maxData+1)
	if err := w.SendJSON(KindSignal, 15); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Data(KindStdout).Write(long); n != len(long) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(long), err)
	}
	if n, err := w.Data(KindStderr).Write(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if err := w.Send(KindStdin, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(KindStdout, make([]byte, maxFrame+1)); err == nil {
		t.Error("a frame that no reader takes was sent")
	}
	for _, want := range []struct {
		kind Kind
		size int
	}{{KindSignal, 2}, {KindStdout, maxData}, {KindStdout, maxData}, {KindStdout, 1}, {KindStdin, 0}} {
		kind, payload, err := Read(&b)
		if err != nil || kind != want.kind || len(payload) != want.size {
			t.Errorf("have kind %d with %d bytes, %v; want %v", kind, len(payload), err, want)
		}
	}
	if _, _, err := Read(&b); err != io.EOF {
		t.Errorf("at the end: have %v, want %v", err, io.EOF)
	}
}

// FuzzRead: input is either refused or, written again, identical.
func FuzzRead(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{2, 0, 0, 0, 9, 'x'})
	f.Add([]byte{2, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		kind, payload, err := Read(bytes.NewReader(in))
		if err != nil {
			if len(in) > 0 && err == io.EOF {
				t.Error("a frame that was cut is taken for a clean end")
			}
			return
		}
		var out bytes.Buffer
		if err := NewWriter(&out).Send(kind, payload); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(in, out.Bytes()) {
			t.Errorf("%x was read as %x", in, out.Bytes())
		}
	})
}
