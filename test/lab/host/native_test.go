package host_test

import (
	"testing"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/host/hosttest"
)

func TestNative(t *testing.T) { hosttest.Suite(t, host.Native{}) }
