package reach

import (
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// reply returns what the socket reads as the answer to a request.
func reply(t testing.TB, e *echo, id uint64) []byte {
	message := icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: e.body(id)}
	if e.v6 {
		message.Type = ipv6.ICMPTypeEchoReply
	}
	data, err := message.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if e.v6 {
		return data
	}
	return append([]byte{0x46, 19 + ipv4.HeaderLen: 0, 23: 0}[:24], data...) // with an option of 4 bytes
}

// FuzzEcho: only an answer with this process's token counts.
func FuzzEcho(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		f.Add(reply(f, &echo{v6: v6, token: 7}, 42), v6, uint64(7))
		f.Add(reply(f, &echo{v6: v6, token: 7}, 42), v6, uint64(8))
	}
	f.Add([]byte{0x4f}, false, uint64(0))
	f.Fuzz(func(t *testing.T, data []byte, v6 bool, token uint64) {
		e := &echo{v6: v6, token: token}
		id, ok := e.parse(data)
		if !ok {
			return
		}
		if again, ok := e.parse(reply(t, e, id)); !ok || again != id {
			t.Errorf("%d, %v; want %d", again, ok, id)
		}
	})
}

func TestEchoReply(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		e := &echo{v6: v6, token: 7}
		data := reply(t, e, 1<<40+1)
		if id, ok := e.parse(data); !ok || id != 1<<40+1 {
			t.Errorf("%d, %v", id, ok)
		}
		for i := range data {
			if _, ok := e.parse(data[:i]); ok {
				t.Errorf("%d of %d bytes were accepted as an answer", i, len(data))
			}
		}
		if _, ok := (&echo{v6: v6, token: 8}).parse(data); ok {
			t.Error("an answer to another process was accepted")
		}
	}
}
