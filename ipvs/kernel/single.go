package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// one carries out one op. Adding an existing object edits it.
func (k *Kernel) one(op ipvs.Op) error {
	service, destination := serviceOf(op.Virtual, op.Settings), destinationOf(op.Real, op.RealServer)
	var err error
	switch op.Action {
	case ipvs.AddVirtual:
		if err = k.library.NewService(service); err == unix.EEXIST {
			err = k.library.UpdateService(service)
		}
	case ipvs.EditVirtual:
		err = k.library.UpdateService(service)
	case ipvs.DeleteVirtual:
		err = k.library.DelService(service)
	case ipvs.AddReal:
		if err = k.library.NewDestination(service, destination); err == unix.EEXIST {
			err = k.library.UpdateDestination(service, destination)
		}
	case ipvs.EditReal:
		err = k.library.UpdateDestination(service, destination)
	case ipvs.DeleteReal:
		err = k.library.DelDestination(service, destination)
	}
	return explainOp(op, err)
}

// get reads one virtual server; the error is ESRCH if there is none.
func (k *Kernel) get(key ipvs.Key) (ipvs.Settings, error) {
	s, err := k.library.GetService(serviceOf(key, ipvs.Settings{}))
	if err != nil {
		return ipvs.Settings{}, explain(err)
	}
	got, settings, ok := readService(s)
	if !ok || got != key {
		return ipvs.Settings{}, fmt.Errorf("asked for %v, got %v", key, got)
	}
	return settings, nil
}
