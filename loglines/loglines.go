// Package loglines writes one line of a log for what many objects have in common: the death of a node concerns a hundred
// addresses and has one cause.
package loglines

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Lines are the lines of one reconcile, until Flush. With level debug each object has its own line, at once.
type Lines struct {
	log *slog.Logger

	mu  sync.Mutex
	all []*line
}

// line is what has one level, message and reason in common.
type line struct {
	level           slog.Level
	message, reason string
	times           int
	// attrs are the first attribute, which names the object, and those that all have in common.
	attrs   []any
	objects map[string]struct{}
	first   []string
}

// most is how many objects a line names.
const most = 3

// New returns Lines of a log.
func New(log *slog.Logger) *Lines { return &Lines{log: log} }

// Add adds an object to the line of its level, message and attribute "reason". The attributes are keys and values; the
// first is the object.
func (l *Lines) Add(level slog.Level, message string, attrs ...any) {
	ctx := context.Background()
	if level < slog.LevelInfo || !l.log.Enabled(ctx, level) || l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.Log(ctx, level, message, attrs...)
		return
	}
	reason, object := valueOf(attrs, "reason"), fmt.Sprint(attrs[1])
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.all, func(x *line) bool { return x.level == level && x.message == message && x.reason == reason })
	if at < 0 {
		at = len(l.all)
		l.all = append(l.all, &line{level: level, message: message, reason: reason, attrs: attrs, objects: map[string]struct{}{}})
	}
	x := l.all[at]
	x.times++
	for i := len(x.attrs) - 2; i > 0; i -= 2 {
		if valueOf(attrs, x.attrs[i]) != fmt.Sprint(x.attrs[i+1]) {
			x.attrs = slices.Concat(x.attrs[:i], x.attrs[i+2:])
		}
	}
	if _, named := x.objects[object]; !named && len(x.objects) < most {
		x.first = append(x.first, object)
	}
	x.objects[object] = struct{}{}
}

// valueOf returns the text of an attribute, empty without it.
func valueOf(attrs []any, key any) string {
	for i := 0; i < len(attrs); i += 2 {
		if attrs[i] == key {
			return fmt.Sprint(attrs[i+1])
		}
	}
	return ""
}

// Flush writes the lines.
func (l *Lines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.all {
		if x.times > 1 {
			objects := strings.Join(x.first, ", ")
			if more := len(x.objects) - len(x.first); more > 0 {
				objects += fmt.Sprintf(" and %d more", more)
			}
			x.attrs = slices.Concat([]any{x.attrs[0], objects, "times", x.times}, x.attrs[2:])
		}
		l.log.Log(context.Background(), x.level, x.message, x.attrs...)
	}
	l.all = nil
}
