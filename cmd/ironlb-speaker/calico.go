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

// calicoPrefix begins the name of the file that says that Calico polices a node, which the name of the node ends.
const calicoPrefix = "calico-"

// calicoGone is how long this process has run when a node without a sign of Calico counts as one without Calico.
const calicoGone = 10 * time.Minute

// calico finds out whether Calico polices this node. That is remembered in a file: after a boot the speaker chooses
// what forwards before Calico's agent makes its rules.
type calico struct {
	log   *slog.Logger
	file  string // empty for none
	began time.Time
	look  func() (bool, error)

	mu   sync.Mutex
	said string // why the file could not be changed
}

func newCalico(o options, log *slog.Logger) *calico {
	return &calico{log: log, file: o.stateFile(calicoPrefix), began: time.Now(), look: kubeproxy.CalicoPolices}
}

// polices reports whether Calico polices what is forwarded to Pods, and has that remembered.
func (c *calico) polices() (bool, error) {
	polices, err := c.look()
	if err == nil && c.file != "" {
		c.remember(polices)
	}
	return polices, err
}

// policesOrDid reports whether Calico polices what is forwarded to Pods, or did when that was seen last.
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

// remember makes the file, or removes it where Calico would have been seen by now.
func (c *calico) remember(polices bool) {
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
		c.said = ""
		c.log.Info("remember whether Calico polices this node, for dataplane auto after a boot",
			"polices", polices, "file", c.file)
	} else if err.Error() != c.said {
		c.said = err.Error()
		c.log.Warn("cannot remember whether Calico polices this node", "file", c.file, "error", err)
	}
}
