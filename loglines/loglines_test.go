package loglines

import (
	"bytes"
	"log/slog"
	"testing"
)

func without(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// TestLines: objects with one message, level and reason have one line; with level debug each has its own.
func TestLines(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelInfo: `level=INFO msg=announce address="a, b, c and 1 more" times=5 reason=Lost
level=INFO msg=announce address=e on=[eth1] reason=Back
level=WARN msg=announce address=f reason=Lost
level=INFO msg=later about=a
`,
		slog.LevelWarn: "level=WARN msg=announce address=f reason=Lost\n",
		slog.LevelDebug: `level=INFO msg=announce address=a on=[eth0] reason=Lost
level=DEBUG msg=detail of=a
level=INFO msg=announce address=b on=[eth0] reason=Lost
level=INFO msg=announce address=e on=[eth1] reason=Back
level=INFO msg=announce address=c on=[eth0] reason=Lost
level=WARN msg=announce address=f reason=Lost
level=INFO msg=announce address=d on=[eth1] reason=Lost
level=INFO msg=announce address=a on=[eth0] reason=Lost
level=INFO msg=later about=a
`,
	} {
		var out bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level, ReplaceAttr: without})))
		l.Add(slog.LevelInfo, "announce", "address", "a", "on", []string{"eth0"}, "reason", "Lost")
		l.Add(slog.LevelDebug, "detail", "of", "a")
		l.Add(slog.LevelInfo, "announce", "address", "b", "on", []string{"eth0"}, "reason", "Lost")
		l.Add(slog.LevelInfo, "announce", "address", "e", "on", []string{"eth1"}, "reason", "Back")
		l.Add(slog.LevelInfo, "announce", "address", "c", "on", []string{"eth0"}, "reason", "Lost")
		l.Add(slog.LevelWarn, "announce", "address", "f", "reason", "Lost")
		l.Add(slog.LevelInfo, "announce", "address", "d", "on", []string{"eth1"}, "reason", "Lost")
		l.Add(slog.LevelInfo, "announce", "address", "a", "on", []string{"eth0"}, "reason", "Lost")
		l.Flush()
		l.Add(slog.LevelInfo, "later", "about", "a")
		l.Flush()
		l.Flush()
		if out.String() != want {
			t.Errorf("%v:\n%s\nwant:\n%s", level, &out, want)
		}
	}
}
