package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// calicoPrefix is the prefix of the file that records that Calico polices a node; the suffix is the node's name.
const calicoPrefix = "calico-"

// calicoGone is how long this process must run before a node without signs of Calico counts as one without Calico.
const calicoGone = 10 * time.Minute

// calico detects whether Calico polices this node. The result is recorded in a file: after a boot the speaker selects
// the data plane before Calico's agent creates its rules.
type calico struct {
	log     *slog.Logger
	file    string // empty for none
	began   time.Time
	observe func() (bool, error)

	mu     sync.Mutex
	logged string // the last error of changing the file
}

func newCalico(o options, log *slog.Logger) *calico {
	return &calico{log: log, file: o.stateFile(calicoPrefix), began: time.Now(), observe: kubeproxy.CalicoPolices}
}

// polices reports whether Calico polices traffic forwarded to Pods, and records the result.
func (c *calico) polices() (bool, error) {
	polices, err := c.observe()
	if err == nil && c.file != "" {
		c.record(polices)
	}
	return polices, err
}

// policesOrDid reports whether Calico polices traffic forwarded to Pods, or did according to the record.
func (c *calico) policesOrDid() (bool, error) {
	polices, err := c.polices()
	if err != nil || polices || c.file == "" {
		return polices, err
	}
	_, err = os.Stat(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// record creates the file, or removes it once Calico would have been detected.
func (c *calico) record(polices bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := os.Stat(c.file)
	there := err == nil
	switch {
	case polices && !there:
		if err = os.MkdirAll(filepath.Dir(c.file), 0o700); err == nil {
			err = os.WriteFile(c.file, nil, 0o600)
		}
	case !polices && there && time.Since(c.began) >= calicoGone:
		err = os.Remove(c.file)
	default:
		return
	}
	if err == nil {
		c.logged = ""
		c.log.Info("Calico policy recorded for dataplane auto after a reboot",
			"polices", polices, "file", c.file)
	} else if err.Error() != c.logged {
		c.logged = err.Error()
		c.log.Warn("failed to record Calico policy", "file", c.file, "error", err)
	}
}

// stateFile returns a file in stateDir, empty for none.
func (o options) stateFile(prefix string) string {
	if o.config.StateDir == "" {
		return ""
	}
	return filepath.Join(o.config.StateDir, prefix+filepath.Base(o.nodeName))
}

// removeState removes the speakers' files from a directory, and nothing else.
func removeState(dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, calicoPrefix+"*"))
	errs := []error{err}
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		log.Info("delete file", "file", file, "reason", "Cleanup")
	}
	return errors.Join(errs...)
}
