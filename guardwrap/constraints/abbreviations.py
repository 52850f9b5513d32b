"""Abbreviations with a full stop, of many languages, by whether a sentence may end after them.

The keys are without the last full stop and without spaces: ``z.B`` also stands for ``z. B.``
"""

from __future__ import annotations

NEVER_END = frozenset(
    " ".join(
        (
            "Mr Mrs Ms Dr Prof St Jr Sr vs e.g i.e cf Messrs Gen Rev Hon approx incl",
            # German, Dutch
            "z d u v d.h u.a v.a bzw ca evtl ggf inkl vgl Nr Hr Fr Abb Mio Mrd Ing Dipl sog insb exkl zzgl einschl",
            "ehem Fam Frl Hrsg Tel dhr Dhr mevr Mevr mw Mw drs Drs bijv",
            # French, Spanish, Portuguese, Italian
            "p p.ex env MM Mme Mlle Mgr av tél p.ej p.e Sra Srta Sres Dra Dña Ud Uds núm pág págs EE Av Avda aprox",
            "séc Profa sig Sig dott Dott dott.ssa Dott.ssa prof.ssa avv cfr",
            # Polish, Czech
            "np tzn tj ul prof dr im hab inż mgr św al wg tzw godz např tzv",
            # Russian, Ukrainian
            "т т.е т.к т.н ул им рис стр см напр кв корп просп пер гл проф акад вул буд пров ім див",
            "к г д с м р п",
            # Turkish, Vietnamese, Greek
            "Cad Mah Sok TP GS PGS TS ThS κ κα",
            # Hindi, Thai
            "डॉ प्रो पं रु श्री कु ดร รศ ผศ",
        )
    ).split()
)
"""A name, a number or another word always follows."""

MAY_END = frozenset(
    " ".join(
        (
            "etc usw u.s.w Jh Std a.m p.m enz UU Cía Ltda ecc vb",
            "itd itp zł tys mln mld atd apod hod",
            "т.д т.п др пр руб коп тыс млн млрд грн тис рр ст",
        )
    ).split()
)
"""A sentence ends after these, unless a small letter follows."""

BEFORE_NUMBER = frozenset(
    " ".join(("No Nos Art art Abs Bd Kap Str vol Vol chap cap fig Fig réf pag", "n s m ok č ст")).split()
)
"""These are abbreviations only before a number. Otherwise they are words at the end of a sentence."""
